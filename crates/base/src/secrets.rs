//! Detects secrets in configuration files. When in doubt it refuses the file: the manifest lists what was refused, and
//! a missing setting can be added later, but a leaked secret cannot be taken back.

/// Whether a configuration file must be left out because of its contents.
pub(super) fn looks_secret(contents: &[u8]) -> bool {
    if holds_private_key(contents) {
        return true;
    }
    // Key rings and caches are not text. The patterns below mean nothing there.
    let Ok(text) = std::str::from_utf8(contents) else { return false };
    text.lines().any(|line| has_userinfo(line) || assigned_secret(line) || has_xml_password(line))
}

/// Whether the contents include a private key in PEM format.
pub(super) fn holds_private_key(contents: &[u8]) -> bool {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    contents.windows(MARK.len()).any(|window| window == MARK)
}

/// Whether a line contains a URL with userinfo, the part of the authority before `@`: a name, a password or a token.
pub(super) fn has_userinfo(line: &str) -> bool {
    authorities(line).any(|authority| authority.contains('@'))
}

/// Whether a line contains a URL of the host's loopback interface, which a sandbox cannot reach.
pub(super) fn names_loopback(line: &str) -> bool {
    authorities(line).any(|authority| {
        let host = authority.rsplit('@').next().unwrap_or(authority);
        let host = host.strip_prefix('[').map_or_else(
            || host.split([':', '\'', ',', ';']).next().unwrap_or(host),
            |bracketed| bracketed.split(']').next().unwrap_or(bracketed),
        );
        host.eq_ignore_ascii_case("localhost") || host.starts_with("127.") || host == "::1" || host == "0.0.0.0"
    })
}

/// The authority of each URL in a line: the part between `://` and the path.
fn authorities(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(|rest| {
        // Only characters that a password can never contain end it, so that unusual passwords are found too.
        let end = rest.find(|c: char| c.is_whitespace() || "/?#\"<>\\".contains(c));
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Suffixes of variable names that hold secrets.
const SECRET_NAMES: &[&str] = &[
    "ACCESS_KEY",
    "API_KEY",
    "APIKEY",
    "AUTHTOKEN",
    "AUTH_TOKEN",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PRIVATE_KEY",
    "SECRET",
    "SECRET_KEY",
    "TOKEN",
    "_AUTH",
];

/// Whether a line assigns a value to a secret, such as `export X_TOKEN=…` or `//host/:_authToken=…`.
pub(super) fn assigned_secret(line: &str) -> bool {
    let Some((name, value)) = line.split_once('=') else { return false };
    let value = value.trim().trim_matches(['"', '\'']);
    if value.is_empty() || value.starts_with('$') {
        return false;
    }
    let name = name.trim_end().to_ascii_uppercase().replace('-', "_");
    SECRET_NAMES.iter().any(|end| name.ends_with(end))
}

fn has_xml_password(line: &str) -> bool {
    ["<password>", "<passphrase>", "<privateKey>"].iter().any(|tag| line.contains(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_urls_are_found() {
        assert!(has_userinfo("deb https://name:pass@packages.example/debian stable main"));
        assert!(has_userinfo("index-url = https://token@pypi.example/simple"));
        assert!(has_userinfo("Acquire::http::Proxy \"http://u:p@proxy:3128\";"));
        assert!(has_userinfo("http://plain.example http://u@second.example"));
        assert!(has_userinfo("http://u:p]x,y;z'@[::1]:80/"));
    }

    #[test]
    fn at_signs_elsewhere_are_no_credentials() {
        assert!(!has_userinfo("deb https://packages.example/debian@2 stable main"));
        assert!(!has_userinfo("Maintainer: someone@example.org, see https://example.org"));
        assert!(!has_userinfo(""));
    }

    #[test]
    fn assignments_of_secrets_are_found() {
        assert!(looks_secret(b"//npm.example/:_authToken=abc\n"));
        assert!(looks_secret(b"export GH_TOKEN='abc'\n"));
        assert!(looks_secret(b"_auth = abc\n"));
        assert!(looks_secret(b"-----BEGIN RSA PRIVATE KEY-----\n"));
        assert!(looks_secret(b"\xff\xfe-----BEGIN OPENSSH PRIVATE KEY-----\n"));
        assert!(!looks_secret(b"export GH_TOKEN=$OTHER\nexport EMPTY_TOKEN=\"\"\n"));
        assert!(!looks_secret(b"jmxremote.password.file=/x\nauth [success=1] pam_unix.so\n"));
    }

    #[test]
    fn the_hosts_own_addresses_are_found() {
        for url in ["http://localhost:3142/x", "http://127.0.0.1", "http://[::1]:8080/", "http://u:p@LOCALHOST/"] {
            assert!(names_loopback(url), "{url}");
        }
        assert!(!names_loopback("http://localhost.example/"));
        assert!(!names_loopback("127.0.0.1"));
    }
}
