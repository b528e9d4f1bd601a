//! `plimsoll arena`: buffers in, offsets out.

use super::Sandbox;

/// Three buffers that pairwise overlap in time, and a fourth that fits above any of them.
const TABLE: &str = "id,lower,upper,size\na,0,2,64\nb,1,3,64\nc,2,4,64\nd,0,4,32\n";

/// Offsets by name.
fn offsets(table: &str) -> Vec<(String, u64)> {
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("id,lower,upper,size,offset"));
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields[0].to_string(), fields[4].parse().unwrap())
    };
    lines.map(row).collect()
}

#[test]
fn a_table_of_buffers_gets_the_smallest_arena() {
    let sandbox = Sandbox::new("arena");
    sandbox.write("in.csv", TABLE);
    let output = sandbox.run(&["arena", "in.csv", "--verify"]);
    assert!(output.status.success());
    let placed = offsets(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(placed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(placed[0].1, placed[2].1, "c takes the place of a");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bound 160 · result 160 · proven smallest, verified · "), "{said}");

    assert_eq!(sandbox.succeed(&["arena", "in.csv", "--capacity", "160", "--out", "out.csv"]), "");
    assert_eq!(offsets(&std::fs::read_to_string(sandbox.path("out.csv")).unwrap()), placed);
    let document = sandbox.json(&["arena", "in.csv", "--capacity", "1KiB", "--json"]);
    assert_eq!((document["fits"].as_bool(), document["lower_bound_bytes"].as_u64()), (Some(true), Some(160)));
    assert_eq!(document["offsets"].as_array().unwrap().len(), 4);
}

#[test]
fn an_infeasible_capacity_is_proven_and_writes_no_file() {
    let sandbox = Sandbox::new("arena-impossible");
    sandbox.write("in.csv", TABLE);
    let (code, said) = sandbox.fail(&["arena", "in.csv", "--capacity", "159", "--out", "out.csv"]);
    assert_eq!(code, 3);
    assert!(said.contains("does not fit into 159: proven impossible; the minimum found is 160"), "{said}");
    assert!(!sandbox.path("out.csv").exists());
}

#[test]
fn malformed_tables_report_the_line() {
    let sandbox = Sandbox::new("arena-bad");
    let expected = "the first line names the columns id, lower, upper, size";
    let cases = [
        ("", format!(" is empty; {expected}")),
        ("id,lower,upper,size\n", " has a header but no buffers".to_string()),
        ("0,1,2,3\n", format!(", line 1: `0,1,2,3` is not a header; {expected}")),
        ("id,lower,upper,size\na,0,1,8\nb,0,1\n", ", line 3: has 3 columns where the header has 4".to_string()),
        ("id,lower,upper,size\na,0,x,8\n", ", line 2: the upper `x` is not an integer from 0 to 18446744073709551615".to_string()),
        ("id,lower,upper,size\na,0,1,-8\n", ", line 2: the size `-8` is not an integer from 0 to 18446744073709551615".to_string()),
        ("id,lower,upper,size\na,0,1,0\n", ", line 2: a buffer of no bytes needs no place; take it out".to_string()),
        (
            "id,lower,upper,size\na,4,4,8\n",
            ", line 2: the buffer ends (4) before it begins (4); upper is the moment after its last".to_string(),
        ),
        ("id,lower,upper,size\na,0,1,18446744073709551615\nb,0,1,1\n", ": the sizes add up to more than 2^64 bytes".to_string()),
    ];
    for (table, error) in cases {
        sandbox.write("in.csv", table);
        assert_eq!(sandbox.fail(&["arena", "in.csv"]), (1, format!("error: in.csv{error}")));
    }
    let missing = "error: cannot read missing.csv: No such file or directory (os error 2)".to_string();
    assert_eq!(sandbox.fail(&["arena", "missing.csv"]), (1, missing));
}
