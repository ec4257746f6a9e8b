//! Parses sudo's command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What sudo should do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Action {
    #[default]
    Run,
    List,
    Validate,
    ResetTimestamp,
    Help,
    Version,
}

/// Which shell to run the command in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// `-i`: the target's login shell.
    Initial,
    /// `-s`: the caller's shell.
    Shell,
}

/// Which variables to keep in addition to the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Preserve {
    #[default]
    Nothing,
    Everything,
    Names(Vec<String>),
}

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) action: Action,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
    pub(super) login: Option<Login>,
    pub(super) preserve: Preserve,
    /// `-H`: HOME is the target's even if it would be kept.
    pub(super) set_home: bool,
    pub(super) variables: Vec<(OsString, OsString)>,
    pub(super) command: Vec<OsString>,
}

/// Why a command line is not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ArgsError {
    #[error("invalid option -- '{0}'")]
    UnknownShort(char),
    #[error("unrecognized option '{0}'")]
    UnknownLong(String),
    #[error("option requires an argument -- '{0}'")]
    MissingValue(String),
    #[error("you may not specify both the -i and -s options")]
    TwoShells,
    #[error("a command is required")]
    NoCommand,
}

pub(super) fn parse(args: &[OsString]) -> Result<Request, ArgsError> {
    let mut request = Request::default();
    let mut rest = args.iter();
    let mut resets_timestamp = false;
    while let Some(arg) = rest.as_slice().first() {
        match arg.as_bytes() {
            b"--" => {
                rest.next();
                break;
            }
            [b'-', b'-', long @ ..] => {
                rest.next();
                parse_long(&String::from_utf8_lossy(long), &mut rest, &mut request, &mut resets_timestamp)?;
            }
            [b'-', _, ..] => {
                rest.next();
                parse_short(&arg.to_string_lossy()[1..], &mut rest, &mut request, &mut resets_timestamp)?;
            }
            _ => match split_variable(arg) {
                Some(variable) => {
                    rest.next();
                    request.variables.push(variable);
                }
                None => break,
            },
        }
    }
    // After `--`, variables may still come before the command.
    while let Some(variable) = rest.as_slice().first().and_then(|arg| split_variable(arg)) {
        rest.next();
        request.variables.push(variable);
    }
    request.command = rest.cloned().collect();
    if request.action == Action::Run && request.command.is_empty() && request.login.is_none() {
        if !resets_timestamp {
            return Err(ArgsError::NoCommand);
        }
        request.action = Action::ResetTimestamp;
    }
    Ok(request)
}

type Rest<'a> = std::slice::Iter<'a, OsString>;

fn parse_short(
    flags: &str,
    rest: &mut Rest<'_>,
    request: &mut Request,
    resets_timestamp: &mut bool,
) -> Result<(), ArgsError> {
    if flags == "h" && rest.as_slice().is_empty() {
        request.action = Action::Help;
        return Ok(());
    }
    let mut flags = flags.chars();
    while let Some(flag) = flags.next() {
        // An option with a value takes the rest of the word, or the next word.
        let mut value = || {
            let attached = Some(flags.as_str().to_owned()).filter(|text| !text.is_empty());
            let value = attached.or_else(|| rest.next().map(|value| value.to_string_lossy().into_owned()));
            value.ok_or_else(|| ArgsError::MissingValue(flag.to_string()))
        };
        match flag {
            'u' => request.user = Some(value()?),
            'g' => request.group = Some(value()?),
            // Prompt, close-from, host, role, type and command timeout have no effect here.
            'p' | 'C' | 'h' | 'r' | 't' | 'T' | 'U' => {
                value()?;
            }
            _ => {
                set_flag(flag, request, resets_timestamp)?;
                continue;
            }
        }
        return Ok(());
    }
    Ok(())
}

fn set_flag(flag: char, request: &mut Request, resets_timestamp: &mut bool) -> Result<(), ArgsError> {
    match flag {
        'E' => request.preserve = Preserve::Everything,
        'H' => request.set_home = true,
        'i' => set_login(request, Login::Initial)?,
        's' => set_login(request, Login::Shell)?,
        'k' | 'K' => *resets_timestamp = true,
        'l' => request.action = Action::List,
        'v' => request.action = Action::Validate,
        'V' => request.action = Action::Version,
        // No effect here: there are no passwords, background commands, askpass programs, bells or group vectors.
        'n' | 'S' | 'A' | 'b' | 'B' | 'P' | 'N' => {}
        other => return Err(ArgsError::UnknownShort(other)),
    }
    Ok(())
}

fn set_login(request: &mut Request, login: Login) -> Result<(), ArgsError> {
    if request.login.is_some_and(|other| other != login) {
        return Err(ArgsError::TwoShells);
    }
    request.login = Some(login);
    Ok(())
}

fn parse_long(
    option: &str,
    rest: &mut Rest<'_>,
    request: &mut Request,
    resets_timestamp: &mut bool,
) -> Result<(), ArgsError> {
    let (name, attached) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (option, None),
    };
    let mut value = || {
        let value = attached.clone().or_else(|| rest.next().map(|value| value.to_string_lossy().into_owned()));
        value.ok_or_else(|| ArgsError::MissingValue(name.to_owned()))
    };
    match name {
        "user" => request.user = Some(value()?),
        "group" => request.group = Some(value()?),
        "prompt" | "close-from" | "host" | "role" | "type" | "command-timeout" | "chdir" | "other-user" => {
            value()?;
        }
        "preserve-env" => match attached {
            None => request.preserve = Preserve::Everything,
            Some(list) => preserve_names(request, &list),
        },
        "help" => request.action = Action::Help,
        _ => set_flag(
            short_of(name).ok_or_else(|| ArgsError::UnknownLong(format!("--{name}")))?,
            request,
            resets_timestamp,
        )?,
    }
    Ok(())
}

fn preserve_names(request: &mut Request, list: &str) {
    let new = list.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
    match &mut request.preserve {
        Preserve::Everything => {}
        Preserve::Names(names) => names.extend(new),
        Preserve::Nothing => request.preserve = Preserve::Names(new.collect()),
    }
}

fn short_of(name: &str) -> Option<char> {
    Some(match name {
        "set-home" => 'H',
        "login" => 'i',
        "shell" => 's',
        "reset-timestamp" => 'k',
        "remove-timestamp" => 'K',
        "list" => 'l',
        "validate" => 'v',
        "version" => 'V',
        "non-interactive" => 'n',
        "stdin" => 'S',
        "askpass" => 'A',
        "background" => 'b',
        "bell" => 'B',
        "preserve-groups" => 'P',
        "no-update" => 'N',
        _ => return None,
    })
}

fn split_variable(arg: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = arg.as_bytes();
    let at = bytes.iter().position(|b| *b == b'=')?;
    let (name, value) = (&bytes[..at], &bytes[at + 1..]);
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let valid = name.iter().all(is_name) && name.first().is_some_and(|b| !b.is_ascii_digit());
    valid.then(|| (OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()))
}

/// Joins the command to one script for `sh -c`. Escapes special characters with a backslash, as sudo does.
pub(super) fn quote_for_shell(command: &[OsString]) -> OsString {
    let mut script = Vec::new();
    for (n, word) in command.iter().enumerate() {
        if n > 0 {
            script.push(b' ');
        }
        for byte in word.as_bytes() {
            if !byte.is_ascii_alphanumeric() && !b"_-$".contains(byte) {
                script.push(b'\\');
            }
            script.push(*byte);
        }
    }
    OsString::from_vec(script)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(args: &[&str]) -> Result<Request, ArgsError> {
        parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(parsed(&["-z", "ls"]), Err(ArgsError::UnknownShort('z')));
        assert_eq!(parsed(&["--what", "ls"]), Err(ArgsError::UnknownLong("--what".into())));
        assert_eq!(parsed(&["-u"]), Err(ArgsError::MissingValue("u".into())));
        assert_eq!(parsed(&["-is"]), Err(ArgsError::TwoShells));
        assert_eq!(parsed(&[]), Err(ArgsError::NoCommand));
        assert_eq!(parsed(&["-n", "--"]), Err(ArgsError::NoCommand));
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let request = parsed(&["-nEH", "-u", "bob", "A=1", "ls", "-u", "x", "B=2"]).unwrap();
        assert_eq!(request.user.as_deref(), Some("bob"));
        assert_eq!((request.preserve, request.set_home), (Preserve::Everything, true));
        assert_eq!(request.variables, [("A".into(), "1".into())]);
        assert_eq!(request.command, ["ls", "-u", "x", "B=2"]);
        assert_eq!(parsed(&["-ubob", "ls"]).unwrap().user.as_deref(), Some("bob"));
        assert_eq!(parsed(&["-nu#0", "ls"]).unwrap().user.as_deref(), Some("#0"));
        assert_eq!(parsed(&["--user=bob", "--", "-x"]).unwrap().command, ["-x"]);
        let names = parsed(&["--preserve-env=A,B", "ls"]).unwrap().preserve;
        assert_eq!(names, Preserve::Names(vec!["A".into(), "B".into()]));
    }

    #[test]
    fn no_command_is_needed_for_shells_and_the_timestamp() {
        assert_eq!(parsed(&["-i"]).unwrap().login, Some(Login::Initial));
        assert_eq!(parsed(&["-k"]).unwrap().action, Action::ResetTimestamp);
        assert_eq!(parsed(&["-v"]).unwrap().action, Action::Validate);
        assert_eq!(parsed(&["-l"]).unwrap().action, Action::List);
        assert_eq!(parsed(&["-k", "ls"]).unwrap().action, Action::Run);
    }

    #[test]
    fn scripts_for_shells_are_quoted() {
        assert_eq!(quote_for_shell(&["echo".into(), "a b;".into(), "$X".into()]), "echo a\\ b\\; $X");
    }

    proptest! {
        #[test]
        fn any_words_parse_or_are_refused(words in proptest::collection::vec("[-a-zA-Z=#, \u{e9}]{0,8}", 0..6)) {
            let args: Vec<OsString> = words.iter().map(OsString::from).collect();
            if let Ok(request) = parse(&args) {
                prop_assert!(args.ends_with(&request.command));
                prop_assert!(request.action != Action::Run || request.login.is_some() || !request.command.is_empty());
            }
        }
    }
}
