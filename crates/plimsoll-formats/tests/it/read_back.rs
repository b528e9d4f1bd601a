//! What is written is read back by small independent readers.

use plimsoll_formats::memory_snapshot::{self, Action, Block, Event, Frame, Segment};
use plimsoll_formats::tensorboard::{Bucket, EventWriter, histogram_of};
use plimsoll_formats::trace::TraceWriter;
use serde_json::{Value, json};
use std::collections::HashMap;

/// The payloads of a file of records, with all checksums verified.
fn records(mut file: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let masked = |bytes: &[u8]| {
        let crc = crc32c::crc32c(bytes);
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(file[8..12], masked(&file[..8]));
        let payload = &file[12..][..length];
        assert_eq!(file[12 + length..][..4], masked(payload));
        found.push(payload.to_vec());
        file = &file[16 + length..];
    }
    found
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a message: numbers as their bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let size = match key & 7 {
            0 => {
                found.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, bytes[..size].to_vec()));
        bytes = &bytes[size..];
    }
    found
}

fn field(message: &[u8], number: u64) -> Vec<u8> {
    fields(message).into_iter().find(|(field, _)| *field == number).map(|(_, value)| value).unwrap_or_default()
}

/// Step, tag, plugin and tensor of an event with a summary.
fn summary(event: &[u8]) -> (u64, String, String, Vec<u8>) {
    let value = field(&field(event, 5), 1);
    let step = u64::from_le_bytes(field(event, 2).try_into().unwrap());
    let plugin = field(&field(&field(&value, 9), 1), 1);
    (step, String::from_utf8(field(&value, 1)).unwrap(), String::from_utf8(plugin).unwrap(), field(&value, 8))
}

#[test]
fn events_hold_tensors_with_their_plugin() {
    let mut events = EventWriter::new(Vec::new(), 1.5).unwrap();
    events.scalar("loss", 3, 2.0, 0.25).unwrap();
    events.histogram("weights", 4, 2.0, &[Bucket { left: -1.0, right: 1.0, count: 7.0 }]).unwrap();
    events.images("rows", 5, 2.0, (8, 9), &[b"png"]).unwrap();
    events.text("plan", 600, 2.0, "**peak**").unwrap();
    let records = records(&events.into_inner());
    assert_eq!(field(&records[0], 3), b"brain.Event:2");
    assert_eq!(field(&records[0], 1), 1.5f64.to_le_bytes());

    let (step, tag, plugin, tensor) = summary(&records[1]);
    assert_eq!((step, &tag[..], &plugin[..], field(&tensor, 5)), (3, "loss", "scalars", 0.25f32.to_le_bytes().to_vec()));
    let (_, _, plugin, tensor) = summary(&records[2]);
    let numbers: Vec<f64> = field(&tensor, 4).chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!((&plugin[..], &numbers[..]), ("histograms", &[-1.0, 1.0, 7.0][..]));
    let (_, _, plugin, tensor) = summary(&records[3]);
    let strings: Vec<Vec<u8>> = fields(&tensor).into_iter().filter(|(field, _)| *field == 8).map(|(_, bytes)| bytes).collect();
    assert_eq!((&plugin[..], strings), ("images", vec![b"8".to_vec(), b"9".to_vec(), b"png".to_vec()]));
    let (step, _, plugin, tensor) = summary(&records[4]);
    assert_eq!((step, &plugin[..], field(&tensor, 8)), (600, "text", b"**peak**".to_vec()));
}

#[test]
fn histograms_count_every_finite_value() {
    let values = [0.0, 1.0, 2.0, 4.0, f32::NAN, f32::INFINITY];
    let buckets = histogram_of(values.into_iter(), 4);
    assert_eq!(buckets.iter().map(|bucket| bucket.count).collect::<Vec<_>>(), [1.0, 1.0, 1.0, 1.0]);
    assert_eq!((buckets[0].left, buckets[3].right), (0.0, 4.0));
    assert_eq!(histogram_of([3.0; 5].into_iter(), 2).iter().map(|bucket| bucket.count).sum::<f64>(), 5.0);
    assert!(histogram_of([f32::NAN].into_iter(), 4).is_empty());
}

#[test]
fn a_trace_is_one_json_document() {
    let mut trace = TraceWriter::new(Vec::new()).unwrap();
    trace.name_process(1, "step \"1\"").unwrap();
    trace.slice("conv<2>", (1, 4), 0.5, 2.0, &[("flops", 1e9)]).unwrap();
    trace.counter("arena", 1, 0.5, &[("a", 1.0), ("b", f64::NAN)]).unwrap();
    let document: Value = serde_json::from_slice(&trace.finish().unwrap()).unwrap();
    assert_eq!(
        document["traceEvents"],
        json!([
            { "ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": { "name": "step \"1\"" } },
            { "ph": "X", "pid": 1, "tid": 4, "name": "conv<2>", "ts": 0.5, "dur": 2, "args": { "flops": 1e9 as u64 } },
            { "ph": "C", "pid": 1, "name": "arena", "ts": 0.5, "args": { "a": 1, "b": null } },
        ])
    );
}

/// Interprets a pickle of the opcodes that snapshots use.
fn unpickle(bytes: &[u8]) -> Value {
    let (mut at, mut stack, mut marks, mut memo) = (2, Vec::<Value>::new(), Vec::new(), HashMap::new());
    assert_eq!(bytes[..2], [0x80, 2]);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    loop {
        let code = bytes[at];
        at += 1;
        match code {
            b'}' => stack.push(json!({})),
            b']' => stack.push(json!([])),
            b'(' => marks.push(stack.len()),
            b'u' => {
                let items = stack.split_off(marks.pop().unwrap());
                for pair in items.chunks(2) {
                    stack.last_mut().unwrap()[pair[0].as_str().unwrap()] = pair[1].clone();
                }
            }
            b'e' => {
                let items = stack.split_off(marks.pop().unwrap());
                stack.last_mut().unwrap().as_array_mut().unwrap().extend(items);
            }
            b'X' => {
                let length = word(at) as usize;
                stack.push(json!(std::str::from_utf8(&bytes[at + 4..][..length]).unwrap()));
                at += 4 + length;
            }
            b'K' => {
                stack.push(json!(bytes[at]));
                at += 1;
            }
            b'J' => {
                stack.push(json!(word(at)));
                at += 4;
            }
            0x8a => {
                let length = bytes[at] as usize;
                assert_eq!((length, bytes[at + 9]), (9, 0));
                stack.push(json!(u64::from_le_bytes(bytes[at + 1..at + 9].try_into().unwrap())));
                at += 1 + length;
            }
            0x88 | 0x89 => stack.push(json!(code == 0x88)),
            0x86 => {
                let pair = stack.split_off(stack.len() - 2);
                stack.push(json!(pair));
            }
            b'r' => {
                memo.insert(word(at), stack.last().unwrap().clone());
                at += 4;
            }
            b'j' => {
                stack.push(memo[&word(at)].clone());
                at += 4;
            }
            b'0' => drop(stack.pop()),
            b'.' => break,
            other => panic!("opcode {other:#x}"),
        }
    }
    assert!(marks.is_empty() && stack.len() == 1 && at == bytes.len());
    stack.remove(0)
}

#[test]
fn a_snapshot_has_segments_blocks_and_a_trace() {
    let frames = ["weights", "conv2d"].map(|name| Frame { name: name.into(), file: "step".into() });
    let base = 1u64 << 40;
    let segment = Segment { address: base, size: 1024, blocks: vec![Block { address: base + 256, size: 512, frame: 0 }] };
    let event = |action, time_us| Event { action, address: base, size: 300, frame: 1, time_us };
    let events = [event(Action::Segment, 0), event(Action::Allocate, 1), event(Action::Free, 70_000)];
    let snapshot = unpickle(&memory_snapshot::write(Vec::new(), &frames, &[segment], events).unwrap());
    let segment = &snapshot["segments"][0];
    assert_eq!((&segment["address"], &segment["total_size"], &segment["active_size"]), (&json!(base), &json!(1024), &json!(512)));
    let states: Vec<_> = segment["blocks"].as_array().unwrap().iter().map(|block| (&block["state"], &block["size"])).collect();
    let [active, inactive] = [json!("active_allocated"), json!("inactive")];
    assert_eq!(states, [(&inactive, &json!(256)), (&active, &json!(512)), (&inactive, &json!(256))]);
    let trace = snapshot["device_traces"][0].as_array().unwrap();
    let actions: Vec<_> = trace.iter().map(|event| event["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["segment_alloc", "alloc", "free_requested", "free_completed"]);
    assert_eq!(trace[3]["frames"], json!([{ "name": "conv2d", "filename": "step", "line": 0 }]));
    assert_eq!(trace[3]["time_us"], json!(70_000));
}
