//! The environment of a command that sudo runs: a short list of the caller's variables, the target's identity, and the
//! variables given on the command line.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::sudo::args::{Login, Preserve, Request};
use crate::users::User;

/// The path on which commands are found and which they get, whatever the caller's PATH is.
pub(super) const SECURE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Always kept: terminal and language settings, proxies and private certificate authorities.
const KEPT_VARIABLES: [&str; 29] = [
    "COLORS",
    "COLORTERM",
    "COLUMNS",
    "DISPLAY",
    "LANG",
    "LANGUAGE",
    "LINES",
    "LS_COLORS",
    "TERM",
    "TZ",
    "XAUTHORITY",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
];

pub(super) fn build(
    request: &Request,
    caller: &User,
    target: &User,
    command: &[OsString],
) -> BTreeMap<OsString, OsString> {
    build_from(std::env::vars_os(), request, caller, target, command)
}

fn build_from(
    present: impl Iterator<Item = (OsString, OsString)>,
    request: &Request,
    caller: &User,
    target: &User,
    command: &[OsString],
) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> =
        present.filter(|(name, _)| is_kept(&name.to_string_lossy(), &request.preserve)).collect();
    let mut set = |name: &str, value: &str| env.insert(name.into(), value.into());
    set("PATH", SECURE_PATH);
    set("USER", &target.name);
    set("LOGNAME", &target.name);
    let keeps_home = request.preserve == Preserve::Everything && !request.set_home && request.login.is_none();
    if !keeps_home {
        set("HOME", &target.home);
    }
    if request.login == Some(Login::Initial) || request.preserve != Preserve::Everything {
        set("SHELL", &target.shell);
    }
    set("MAIL", &format!("/var/mail/{}", target.name));
    set("SUDO_USER", &caller.name);
    set("SUDO_UID", &caller.uid.to_string());
    set("SUDO_GID", &caller.gid.to_string());
    env.insert("SUDO_COMMAND".into(), command.join(&OsString::from(" ")));
    env.extend(request.variables.iter().cloned());
    env
}

fn is_kept(name: &str, preserve: &Preserve) -> bool {
    let asked = match preserve {
        Preserve::Nothing => false,
        Preserve::Everything => true,
        Preserve::Names(names) => names.iter().any(|other| other == name),
    };
    asked || KEPT_VARIABLES.contains(&name) || name.starts_with("LC_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, uid: u32) -> User {
        User { name: name.into(), uid, gid: uid, home: format!("/home/{name}"), shell: "/bin/bash".into() }
    }

    fn built(request: &Request) -> BTreeMap<String, String> {
        let present = [("SECRET", "x"), ("TERM", "xterm"), ("LC_ALL", "C"), ("PATH", "/evil"), ("HOME", "/home/user")];
        let present = present.iter().map(|(k, v)| (OsString::from(k), OsString::from(v)));
        let env = build_from(present, request, &user("user", 1000), &user("root", 0), &["ls".into(), "-l".into()]);
        let text = |os: OsString| os.into_string().unwrap();
        env.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn the_callers_variables_do_not_pass() {
        let env = built(&Request::default());
        assert_eq!(env.get("SECRET"), None);
        assert_eq!(env["PATH"], SECURE_PATH);
        assert_eq!((env["HOME"].as_str(), env["USER"].as_str()), ("/home/root", "root"));
        assert_eq!((env["TERM"].as_str(), env["LC_ALL"].as_str()), ("xterm", "C"));
        assert_eq!((env["SUDO_USER"].as_str(), env["SUDO_UID"].as_str()), ("user", "1000"));
        assert_eq!(env["SUDO_COMMAND"], "ls -l");
    }

    #[test]
    fn requested_variables_are_kept() {
        let all = built(&Request { preserve: Preserve::Everything, ..Request::default() });
        assert_eq!(
            (all["SECRET"].as_str(), all["HOME"].as_str(), all["PATH"].as_str()),
            ("x", "/home/user", SECURE_PATH)
        );
        let named = built(&Request { preserve: Preserve::Names(vec!["SECRET".into()]), ..Request::default() });
        assert_eq!(named["SECRET"], "x");
        let given = built(&Request { variables: vec![("A".into(), "1".into())], ..Request::default() });
        assert_eq!(given["A"], "1");
    }
}
