//! The files of the host's `/etc` and `/var` that the base contains. Everything else stays on the host. Each line gives
//! a reason. A `*` at the end of a path matches the rest of a name.

/// A file or tree of the host that is copied to the same path.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) path: &'static str,
    pub(super) why: &'static str,
}

const fn allow(path: &'static str, why: &'static str) -> Allowed {
    Allowed { path, why }
}

/// Small configuration files. Each one is scanned for secrets before it is copied.
pub(super) const ETC: &[Allowed] = &[
    allow("etc/ImageMagick*", "convert refuses to work without its policy"),
    allow("etc/R", "R keeps its site settings outside /usr"),
    allow("etc/adduser.conf", "maintainer scripts add users"),
    allow("etc/alternatives", "many programs in /usr/bin link to it"),
    allow("etc/apt/apt.conf", "package installation"),
    allow("etc/apt/keyrings", "keys of package sources"),
    allow("etc/apt/mirrors", "lists that sources refer to"),
    allow("etc/apt/preferences", "package installation"),
    allow("etc/apt/preferences.d", "package installation"),
    allow("etc/apt/trusted.gpg", "keys of package sources"),
    allow("etc/apt/trusted.gpg.d", "keys of package sources"),
    allow("etc/bash.bashrc", "the shell's prompt and completion"),
    allow("etc/bash_completion.d", "the shell's completion"),
    allow("etc/bindresvport.blacklist", "read by libc"),
    allow("etc/ca-certificates", "hooks of update-ca-certificates"),
    allow("etc/ca-certificates.conf", "which certificates the host trusts"),
    allow("etc/chromium*", "chromium's start script ends without its settings"),
    allow("etc/crypto-policies", "OpenSSL's settings where rpm is used"),
    allow("etc/debconf.conf", "package configuration"),
    allow("etc/debian_version", "read by installers"),
    allow("etc/default/locale", "language"),
    allow("etc/default/nss", "read by libc"),
    allow("etc/default/useradd", "maintainer scripts add users"),
    allow("etc/deluser.conf", "maintainer scripts remove users"),
    allow("etc/dnf/dnf.conf", "package installation"),
    allow("etc/dpkg", "package installation"),
    allow("etc/ethertypes", "read by libc"),
    allow("etc/fonts", "fontconfig"),
    allow("etc/gai.conf", "read by libc"),
    allow("etc/ghostscript", "font tables"),
    allow("etc/groff", "man pages"),
    allow("etc/host.conf", "read by libc"),
    allow("etc/inputrc", "line editing"),
    allow("etc/issue", "read by installers"),
    allow("etc/issue.net", "read by installers"),
    allow("etc/java-*", "the Java runtime keeps its security settings outside /usr"),
    allow("etc/ld.so.cache", "finding libraries"),
    allow("etc/ld.so.conf", "finding libraries"),
    allow("etc/ld.so.conf.d", "finding libraries"),
    allow("etc/libaudit.conf", "read by shadow's tools"),
    allow("etc/locale.alias", "language"),
    allow("etc/locale.conf", "language"),
    allow("etc/locale.gen", "language"),
    allow("etc/localtime", "time zone"),
    allow("etc/login.defs", "maintainer scripts add users"),
    allow("etc/lsb-release", "read by installers"),
    allow("etc/magic", "file(1)"),
    allow("etc/magic.mime", "file(1)"),
    allow("etc/manpath.config", "man pages"),
    allow("etc/maven", "Maven keeps its start-up settings outside /usr"),
    allow("etc/mime.types", "file types"),
    allow("etc/mke2fs.conf", "mke2fs"),
    allow("etc/nanorc", "editor"),
    allow("etc/netconfig", "read by libtirpc"),
    allow("etc/os-release", "read by installers"),
    allow("etc/pam.conf", "su, passwd"),
    allow("etc/pam.d", "su, passwd"),
    allow("etc/papersize", "ghostscript"),
    allow("etc/perl", "perl's site settings"),
    allow("etc/pki/ca-trust/extracted", "certificates on rpm-based systems"),
    allow("etc/pki/rpm-gpg", "keys of package sources"),
    allow("etc/pki/tls/cert.pem", "certificates on rpm-based systems"),
    allow("etc/pki/tls/certs", "certificates on rpm-based systems"),
    allow("etc/profile", "login shells"),
    allow("etc/profile.d", "login shells"),
    allow("etc/protocols", "read by libc"),
    allow("etc/python2*", "python's site settings"),
    allow("etc/python3*", "python's site settings"),
    allow("etc/redhat-release", "read by installers"),
    allow("etc/rpc", "read by libc"),
    allow("etc/rpm", "package installation"),
    allow("etc/security", "su, passwd"),
    allow("etc/services", "read by libc"),
    allow("etc/sgml", "catalogues that maintainer scripts extend"),
    allow("etc/shells", "chsh, adduser"),
    allow("etc/skel", "adduser"),
    allow("etc/ssl/certs", "the certificates the host trusts; never its private keys"),
    allow("etc/system-release", "read by installers"),
    allow("etc/terminfo", "terminals"),
    allow("etc/timezone", "time zone"),
    allow("etc/ucf.conf", "package configuration"),
    allow("etc/vim", "editor"),
    allow("etc/wgetrc", "downloads"),
    allow("etc/xattr.conf", "cp, rsync"),
    allow("etc/xml", "catalogues that maintainer scripts extend"),
    allow("etc/yum.repos.d", "package installation"),
];

/// State that package managers and maintainer scripts need.
pub(super) const VAR: &[Allowed] = &[
    allow("var/lib/apt/extended_states", "which packages were installed automatically"),
    allow("var/lib/ca-certificates-java", "maintainer scripts"),
    allow("var/lib/dpkg", "which packages are installed"),
    allow("var/lib/pam", "pam-auth-update"),
    allow("var/lib/python", "python's maintainer scripts"),
    allow("var/lib/rpm", "which packages are installed"),
    allow("var/lib/sgml-base", "catalogues"),
    allow("var/lib/shells.state", "update-shells"),
    allow("var/lib/ucf/hashfile", "package configuration"),
    allow("var/lib/ucf/registry", "package configuration"),
    allow("var/lib/xml-core", "catalogues"),
];

/// Names that are never copied, wherever they are. By convention they hold keys or passwords.
pub(super) const EXCLUDED: &[Allowed] = &[
    allow("*.jks", "a key store"),
    allow("*.key", "a private key by convention"),
    allow("*.keystore", "a key store"),
    allow("*.p12", "a key store"),
    allow("*.pfx", "a key store"),
    allow("auth.conf", "apt's passwords"),
    allow("auth.conf.d", "apt's passwords"),
    allow("jmxremote.password*", "Java's passwords"),
    allow("opasswd", "old passwords"),
    allow("private", "private keys by convention"),
    allow("settings-security.xml", "Maven's master password"),
];

/// Parts of apt's configuration that call services of the host after each run. In a sandbox they would only fail or
/// cost time.
pub(super) const APT_HOOKS: &[&str] = &[
    "10periodic",
    "15update-stamp",
    "20apt-esm-hook.conf",
    "20auto-upgrades",
    "20listchanges",
    "20packagekit",
    "20snapd.conf",
    "50appstream",
    "50command-not-found",
    "50unattended-upgrades",
    "99update-notifier",
];

/// Whether a file name matches a pattern with an optional `*` at either end.
pub(super) fn names_match(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// The reason why a name is never copied, if it is on that list.
pub(super) fn exclusion(name: &str) -> Option<&'static str> {
    EXCLUDED.iter().find(|entry| names_match(entry.path, name)).map(|entry| entry.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_relative_and_each_line_has_a_reason() {
        for list in [ETC, VAR, EXCLUDED] {
            assert!(list.is_sorted_by_key(|entry| entry.path));
            for entry in list {
                assert!(!entry.why.is_empty());
                assert!(!entry.path.starts_with('/') && !entry.path.contains(".."), "{}", entry.path);
            }
        }
    }

    #[test]
    fn names_of_keys_are_never_taken() {
        assert!(exclusion("server.key").is_some());
        assert!(exclusion("private").is_some());
        assert!(exclusion("keyrings").is_none());
        assert!(exclusion("ca-certificates.crt").is_none());
    }
}
