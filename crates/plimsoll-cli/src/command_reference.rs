//! The command reference in docs/, from the definitions of the commands.

use crate::command_line;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;
use std::path::Path;

const INTRODUCTION: &str = "\
# Command reference

All commands with their arguments, from the definitions in the code: the same as `plimsoll COMMAND --help` and the
manual pages that `plimsoll man --out FOLDER` writes. `plimsoll completions bash` (also zsh, fish) prints completions
for a shell. Exit statuses are in [Troubleshooting](troubleshooting.md#exit-status-of-the-command).

<!-- Written by `UPDATE_DOCS=1 cargo test -p plimsoll-cli --bin plimsoll reference`. -->
";

/// The page.
fn page() -> String {
    let mut all = command_line();
    all.build();
    let mut page = format!("{INTRODUCTION}\n| command | |\n|---|---|\n");
    for command in listed(&all) {
        let name = command.get_name();
        writeln!(page, "| [`plimsoll {name}`](#plimsoll-{name}) | {} |", about(command)).unwrap();
    }
    listed(&all).for_each(|command| section(&mut page, command, 2));
    page
}

/// The subcommands, without `help`.
fn listed(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_about().map(|about| in_a_cell(&about.to_string())).unwrap_or_default()
}

/// A command with its arguments, then its subcommands.
fn section(page: &mut String, command: &Command, level: usize) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>().join(" ");
    let name = usage.split([' ']).take_while(|word| !word.starts_with(['[', '<'])).collect::<Vec<_>>().join(" ");
    write!(page, "\n{} {name}\n{}.\n\n```text\n{usage}\n```\n", "#".repeat(level), about(command)).unwrap();
    let arguments: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | |\n|---|---|\n");
        arguments.iter().for_each(|arg| writeln!(page, "| {} | {} |", invocation(arg), effect(arg)).unwrap());
    }
    listed(command).for_each(|command| section(page, command, level + 1));
}

/// How an argument is written.
fn invocation(arg: &Arg) -> String {
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let values = arg.get_value_names().filter(|_| takes_value).map(|names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
    let values = values.unwrap_or_default().join(" ");
    let flags: Vec<String> =
        arg.get_short().map(|short| format!("-{short}")).into_iter().chain(arg.get_long().map(|long| format!("--{long}"))).collect();
    match (flags.is_empty(), values.is_empty()) {
        (true, _) => format!("`{values}`"),
        (false, true) => format!("`{}`", flags.join("`, `")),
        (false, false) => format!("`{} {values}`", flags.join("`, `")),
    }
}

/// What an argument does, with its default and its choices.
fn effect(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(|help| in_a_cell(&help.to_string())).unwrap_or_default();
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let is_flag = !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let choices = if choices.is_empty() || is_flag { String::new() } else { format!(". One of {}", choices.join(", ")) };
    let default: Vec<String> = arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = if default.is_empty() || is_flag { String::new() } else { format!(". Default {}", default.join(" ")) };
    format!("{help}{choices}{default}")
}

/// A text on one line of a table. What looks like a tag or a separator of cells is escaped.
fn in_a_cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[test]
fn the_docs_contain_the_command_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let stale = "docs/commands.md does not match the definitions; run UPDATE_DOCS=1 cargo test -p plimsoll-cli --bin plimsoll reference";
    assert_eq!(found, page(), "{stale}");
}
