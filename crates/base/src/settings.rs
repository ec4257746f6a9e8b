//! Reduces the configuration of package managers to what is not secret and makes sense in a sandbox: where packages
//! come from and which certificates to trust. Each key is checked, and unknown keys are dropped.

use super::secrets::{assigned_secret, has_userinfo, holds_private_key, names_loopback};

/// What a value must be to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// URLs without credentials that do not point at the host itself.
    Url,
    /// A file or directory that exists in the sandbox.
    File,
    /// Anything that is neither a URL nor a path.
    Word,
}

/// Whether a path exists in the base.
pub(super) type ExistsInSandbox<'a> = &'a dyn Fn(&str) -> bool;

impl Value {
    /// The part of `text` that may be kept. `None` if nothing is left.
    pub(super) fn admit(self, text: &str, exists: ExistsInSandbox<'_>) -> Option<String> {
        let words: Vec<&str> = text.split_whitespace().filter(|word| self.admits(word, exists)).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    fn admits(self, word: &str, exists: ExistsInSandbox<'_>) -> bool {
        match self {
            Self::Url => word.contains("://") && !has_userinfo(word) && !names_loopback(word),
            Self::File => word.starts_with('/') && exists(word),
            Self::Word => !word.contains("://") && !word.contains('/') && !word.contains('@'),
        }
    }
}

const PIP: &[(&str, Value)] = &[
    ("cert", Value::File),
    ("disable-pip-version-check", Value::Word),
    ("extra-index-url", Value::Url),
    ("find-links", Value::Url),
    ("index-url", Value::Url),
    ("prefer-binary", Value::Word),
    ("proxy", Value::Url),
    ("retries", Value::Word),
    ("timeout", Value::Word),
    ("trusted-host", Value::Word),
];

const NPM: &[(&str, Value)] = &[
    ("audit", Value::Word),
    ("cafile", Value::File),
    ("fund", Value::Word),
    ("https-proxy", Value::Url),
    ("noproxy", Value::Word),
    ("proxy", Value::Url),
    ("registry", Value::Url),
    ("strict-ssl", Value::Word),
    ("update-notifier", Value::Word),
];

const GIT_HTTP: &[(&str, Value)] =
    &[("sslcainfo", Value::File), ("sslcapath", Value::File), ("sslverify", Value::Word), ("sslversion", Value::Word)];

/// Reduces pip's configuration. A value may continue on lines that start with a space.
pub(super) fn pip_conf(text: &str, exists: ExistsInSandbox<'_>) -> String {
    let mut out = String::new();
    let mut section = "";
    for (key, value) in ini_entries(text) {
        let Some(value) = value else {
            section = key;
            continue;
        };
        let Some(admitted) = rule(PIP, key).and_then(|rule| rule.admit(&value, exists)) else { continue };
        open_section(&mut out, section);
        out.push_str(&format!("{key} = {}\n", admitted.replace(' ', "\n    ")));
    }
    out
}

/// The value of one of pip's keys, if it may be kept.
pub(super) fn pip_value(text: &str, wanted: &str, exists: ExistsInSandbox<'_>) -> Option<String> {
    let admitted = pip_conf(text, exists);
    let found = ini_entries(&admitted).into_iter().find(|(key, value)| *key == wanted && value.is_some());
    found.and_then(|(_, value)| value)
}

/// Reduces npm's configuration. Tokens are `//host/:_authToken=` lines, which are on no list.
pub(super) fn npmrc(text: &str, exists: ExistsInSandbox<'_>) -> String {
    npm_entries(text, exists).into_iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

/// npm's configuration as pairs, reduced.
pub(super) fn npm_entries(text: &str, exists: ExistsInSandbox<'_>) -> Vec<(String, String)> {
    let admitted = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let key = key.trim();
        let scoped = key.starts_with('@') && key.ends_with(":registry");
        let rule = if scoped { Value::Url } else { rule(NPM, key)? };
        Some((key.to_owned(), rule.admit(value.trim().trim_matches('"'), exists)?))
    };
    text.lines().filter_map(admitted).collect()
}

/// Reduces git's configuration to how it verifies servers. Helpers, identities and URL rewriting are dropped.
pub(super) fn git_config(text: &str, exists: ExistsInSandbox<'_>) -> String {
    let mut out = String::new();
    let mut section = "";
    for (key, value) in ini_entries(text) {
        let Some(value) = value else {
            section = key;
            continue;
        };
        let rule = if section.eq_ignore_ascii_case("http") { rule(GIT_HTTP, key) } else { None };
        let Some(admitted) = rule.and_then(|rule| rule.admit(value.trim_matches('"'), exists)) else { continue };
        open_section(&mut out, "http");
        out.push_str(&format!("\t{key} = {admitted}\n"));
    }
    out
}

/// apt's one-line sources, without those that need a password or a directory of the host.
pub(super) fn apt_sources_list(text: &str) -> String {
    text.lines().filter(|line| is_usable_source(line)).map(|line| format!("{line}\n")).collect()
}

/// apt's sources in stanzas. A stanza is dropped as a whole, because apt rejects half of one.
pub(super) fn apt_sources_stanzas(text: &str) -> String {
    let stanzas: Vec<String> =
        stanzas(text).into_iter().filter(|stanza| stanza.lines().all(is_usable_source)).collect();
    stanzas.join("\n")
}

fn is_usable_source(line: &str) -> bool {
    let local = line.split_whitespace().any(|word| ["file:", "copy:", "cdrom:"].iter().any(|s| word.starts_with(s)));
    !local && !has_userinfo(line) && !names_loopback(line)
}

/// Whether a file of apt's configuration may be copied: it has no passwords, no proxy on the host itself, and no
/// program that detects a proxy.
pub(super) fn is_usable_apt_conf(text: &str) -> bool {
    text.lines().all(|line| {
        let lower = line.to_ascii_lowercase();
        let finds_proxy = lower.contains("proxy-auto-detect") || lower.contains("proxyautodetect");
        !finds_proxy && !has_userinfo(line) && !names_loopback(line) && !assigned_secret(line)
    })
}

/// OpenSSL's configuration without passwords. The value of `challengePassword` is a prompt and not a password.
pub(super) fn openssl_cnf(text: &str) -> String {
    let is_harmless = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim_start_matches(['#', ' ', '\t']).trim();
        !["input_password", "output_password", "PIN"].contains(&key) && !has_userinfo(line)
    };
    if holds_private_key(text.as_bytes()) {
        return String::new();
    }
    text.lines().filter(is_harmless).map(|line| format!("{line}\n")).collect()
}

fn stanzas(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        match (line.trim().is_empty(), all.last_mut()) {
            (true, Some(last)) if !last.is_empty() => all.push(String::new()),
            (false, Some(last)) => last.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    all.retain(|stanza| !stanza.is_empty());
    all
}

/// The sections (`(name, None)`) and entries (`(key, Some(value))`) of an INI file, in order.
fn ini_entries(text: &str) -> Vec<(&str, Option<String>)> {
    let mut entries: Vec<(&str, Option<String>)> = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = trimmed.strip_prefix('[') {
            entries.push((section.trim_end_matches(']').trim(), None));
        } else if let Some((key, value)) = trimmed.split_once(['=']).filter(|(key, _)| is_key(key)) {
            entries.push((key.trim(), Some(value.trim().to_owned())));
        } else if let Some((_, Some(value))) = entries.last_mut().filter(|_| line.starts_with([' ', '\t'])) {
            value.push(' ');
            value.push_str(trimmed);
        }
    }
    entries
}

fn is_key(key: &str) -> bool {
    key.trim().chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn rule(rules: &[(&str, Value)], key: &str) -> Option<Value> {
    let key = key.to_ascii_lowercase().replace('_', "-");
    rules.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

/// Starts `section` unless it is already the current one.
fn open_section(out: &mut String, section: &str) {
    let last = out.lines().rev().find(|line| line.starts_with('['));
    let header = format!("[{section}]");
    if last != Some(header.as_str()) {
        out.push_str(&header);
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything(_: &str) -> bool {
        true
    }

    fn nothing(_: &str) -> bool {
        false
    }

    #[test]
    fn pip_keeps_sources_and_drops_passwords() {
        let text = "[global]\nindex-url = https://u:p@one.example/simple\nextra-index-url =\n  https://two.example/s\n  \
                    https://t@three.example/s\ncert = /etc/ssl/ca.pem\nfind-links = /opt/wheels\npassword = x\n";
        let kept = pip_conf(text, &everything);
        assert_eq!(kept, "[global]\nextra-index-url = https://two.example/s\ncert = /etc/ssl/ca.pem\n");
        assert_eq!(pip_value(text, "extra-index-url", &nothing).as_deref(), Some("https://two.example/s"));
        assert!(!pip_conf(text, &nothing).contains("cert"));
    }

    #[test]
    fn pip_keeps_several_sources_on_their_own_lines() {
        let kept = pip_conf("[install]\nextra-index-url = https://a.example https://b.example\n", &everything);
        assert_eq!(kept, "[install]\nextra-index-url = https://a.example\n    https://b.example\n");
        assert_eq!(pip_conf(&kept, &everything), kept);
    }

    #[test]
    fn npm_keeps_registries_and_drops_tokens() {
        let text = "registry=https://npm.example/\n//npm.example/:_authToken=abc\n_auth=abc\nemail=a@b\n\
                    @x:registry=https://u:p@npm.example/\n@y:registry=https://npm.example/y/\ncafile=/etc/ssl/ca.pem\n";
        assert_eq!(
            npmrc(text, &everything),
            "registry=https://npm.example/\n@y:registry=https://npm.example/y/\ncafile=/etc/ssl/ca.pem\n"
        );
    }

    #[test]
    fn git_keeps_only_trust() {
        let text = "[user]\n\temail = a@b.example\n[http]\n\tsslCAInfo = /etc/ssl/ca.pem\n\textraHeader = Authorization: x\n\
                    [http \"https://git.example\"]\n\tsslKey = /root/key\n[credential]\n\thelper = store\n";
        assert_eq!(git_config(text, &everything), "[http]\n\tsslCAInfo = /etc/ssl/ca.pem\n");
        assert_eq!(git_config(text, &nothing), "");
    }

    #[test]
    fn apt_sources_with_passwords_or_host_paths_are_left_out() {
        let list = "deb http://a.example/debian stable main\ndeb https://u:p@b.example/ x main\ndeb [trusted=yes] file:/srv/r ./\n";
        assert_eq!(apt_sources_list(list), "deb http://a.example/debian stable main\n");
        let stanzas =
            "Types: deb\nURIs: https://u:p@b.example/\nSuites: x\n\nTypes: deb\nURIs: http://a.example/\nSuites: y\n";
        assert_eq!(apt_sources_stanzas(stanzas), "Types: deb\nURIs: http://a.example/\nSuites: y\n");
    }

    #[test]
    fn apt_settings_with_passwords_are_refused() {
        assert!(is_usable_apt_conf("APT::Install-Recommends \"0\";\n"));
        assert!(!is_usable_apt_conf("Acquire::http::Proxy \"http://u:p@proxy.example:3128\";\n"));
        assert!(!is_usable_apt_conf("Acquire::http::Proxy \"http://127.0.0.1:3142\";\n"));
        assert!(!is_usable_apt_conf("Acquire::http::Proxy-Auto-Detect \"/usr/local/bin/p\";\n"));
    }

    #[test]
    fn openssl_loses_passwords_and_keeps_the_rest() {
        let text = "[ req ]\n# input_password = secret\noutput_password = s\nchallengePassword = A text\ndefault_bits = 2048\n";
        assert_eq!(openssl_cnf(text), "[ req ]\nchallengePassword = A text\ndefault_bits = 2048\n");
    }

    #[test]
    fn broken_settings_do_no_harm() {
        for text in ["", "=\n", "[", "[[[\n===\n", "   continuation first\n", "\u{0}\u{0}=\u{0}\n", "[a\nindex-url"] {
            pip_conf(text, &everything);
            npmrc(text, &everything);
            git_config(text, &everything);
            apt_sources_list(text);
            apt_sources_stanzas(text);
        }
    }
}
