//! `isopod help-markdown`: the reference of the command line, made of what clap knows, so that the page cannot lie.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Arg, Command, CommandFactory};

use crate::args::Args;

pub(super) fn run() -> anyhow::Result<ExitCode> {
    crate::say::print(format_args!("{}", reference()));
    Ok(ExitCode::SUCCESS)
}

fn reference() -> String {
    let mut root = Args::command();
    root.build();
    let mut page = String::from(
        "# Command line\n\n<!-- Made by `isopod help-markdown`; a test compares. Renew it with \
         `cargo run -p isopod -- help-markdown > docs/cli.md`. -->\n\n",
    );
    page.push_str("Every command also has `--help`. Options come from what is typed, then from the environment.\n\n");
    write_options(&mut page, "Everywhere", root.get_arguments().filter(|argument| is_shown(argument)));
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_command(&mut page, command, "isopod");
    }
    page.push_str("\n## Exit codes\n\n");
    page.push_str("`run` and `exec` end with the command's own code, 128 and the number of the signal that ended it, ");
    page.push_str(
        "or 124 when `--timeout` did. 125 is a failure of Isopod itself, 2 a command line that makes no sense. ",
    );
    page.push_str("`kill` and `key revoke` end with 1 when something was not there.\n");
    page
}

fn write_command(page: &mut String, command: &Command, parent: &str) {
    let name = format!("{parent} {}", command.get_name());
    let nested: Vec<&Command> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    if nested.is_empty() {
        let mut command = command.clone();
        let usage = command.render_usage().to_string().replace("Usage: ", "");
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## {name}\n\n{about}\n\n```text\n{}\n```\n\n", usage.trim());
        let own = |argument: &&Arg| is_shown(argument) && !argument.is_global_set();
        write_options(page, "", command.get_arguments().filter(own));
    }
    for command in nested {
        write_command(page, command, &name);
    }
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

fn write_options<'a>(page: &mut String, title: &str, arguments: impl Iterator<Item = &'a Arg>) {
    let rows: Vec<String> = arguments.map(row).collect();
    if rows.is_empty() {
        return;
    }
    if !title.is_empty() {
        let _ = write!(page, "**{title}**\n\n");
    }
    let _ = write!(page, "| option | meaning | variable |\n|---|---|---|\n{}\n", rows.join("\n"));
}

fn row(argument: &Arg) -> String {
    let value = argument.get_value_names().filter(|_| argument.get_action().takes_values());
    let value = value.and_then(<[_]>::first).map(ToString::to_string);
    let long = argument.get_long().map(|long| format!("--{long}"));
    let short = argument.get_short().map(|short| format!("-{short}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let name = match (flags.is_empty(), value) {
        (true, value) => value.unwrap_or_default(),
        (false, Some(value)) => format!("{} {value}", flags.join(", ")),
        (false, None) => flags.join(", "),
    };
    let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let default = argument.get_default_values().first().map(|value| value.to_string_lossy());
    if let Some(default) = default.filter(|_| argument.get_action().takes_values()) {
        let _ = write!(meaning, " [default: {default}]");
    }
    let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    format!("| `{name}` | {} | {variable} |", meaning.replace('|', "\\|").replace('<', "&lt;"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_the_docs_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == super::reference(),
            "docs/cli.md is not what the program says; see its head for how to renew it"
        );
    }
}
