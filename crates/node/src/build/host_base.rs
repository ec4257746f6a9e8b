//! Whether this host's files are what the name of an image asks for. A tag that names another version is not served by
//! them unless somebody allowed it.

use isopod_image::Reference;

/// Parts of tags that name no version and no distribution.
const NEUTRAL: [&str; 6] = ["latest", "slim", "stable", "lts", "current", "scm"];

/// Whether the tag of `reference` names what this host has. `version` is that of the image's program, and `system` the
/// name of the host's distribution, which has its version and its code name.
pub(super) fn is_named_by(reference: &Reference, version: Option<&str>, system: &str) -> bool {
    // A digest names bytes that this host cannot have.
    let (Some(tag), None) = (reference.tag(), reference.digest()) else { return false };
    tag.split('-').all(|part| NEUTRAL.contains(&part) || is_prefix(part, version) || is_word_of(part, system))
}

/// The version of a distribution: `12` of `Debian GNU/Linux 12 (bookworm)`.
pub(super) fn version_of(system: &str) -> Option<&str> {
    system.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
}

/// `3.11` of `3.11.2-1+b1`, but `3.1` is another version, and `3.11.7` too.
fn is_prefix(part: &str, version: Option<&str>) -> bool {
    let Some(version) = version else { return false };
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let (wanted, there): (Vec<_>, Vec<_>) = (part.split('.').collect(), version[..end].split('.').collect());
    there.starts_with(&wanted)
}

/// A code name such as `bookworm`.
fn is_word_of(part: &str, system: &str) -> bool {
    let mut words = system.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() > 2);
    words.any(|word| word.eq_ignore_ascii_case(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: &str = "Debian GNU/Linux 12 (bookworm)";

    fn is_named(text: &str, version: Option<&str>) -> bool {
        is_named_by(&text.parse().unwrap(), version, SYSTEM)
    }

    #[test]
    fn a_tag_without_a_version_and_one_with_the_hosts_are_served() {
        for (text, version) in [
            ("node", "20.20.2"),
            ("node:20", "20.20.2"),
            ("node:20-slim", "20.20.2"),
            ("node:20.20-bookworm-slim", "20.20.2"),
            ("node:lts-slim", "20.20.2"),
            ("python:3", "3.11.2-1+b1"),
            ("python:3.11-slim-bookworm", "3.11.2-1+b1"),
            ("python:3.11.2", "3.11.2-1+b1"),
            ("debian:12-slim", "12"),
            ("debian:bookworm", "12"),
            ("debian:stable-slim", "12"),
        ] {
            assert!(is_named(text, Some(version)), "{text}");
        }
        assert_eq!(version_of(SYSTEM), Some("12"));
        assert_eq!(version_of("Ubuntu 24.04.1 LTS"), Some("24.04.1"));
        assert!(is_named_by(&"ubuntu:24.04".parse().unwrap(), version_of("Ubuntu 24.04.1 LTS"), "Ubuntu 24.04.1 LTS"));
    }

    #[test]
    fn another_version_or_distribution_is_not() {
        let digest = format!("node@sha256:{}", "0".repeat(64));
        for (text, version) in [
            ("node:21-slim", Some("20.20.2")),
            ("node:2", Some("20.20.2")),
            ("node:20.20.3", Some("20.20.2")),
            ("node:20-alpine", Some("20.20.2")),
            ("node:20-alpine3.20", Some("20.20.2")),
            ("node:20-trixie", Some("20.20.2")),
            ("node:20", None),
            ("python:3.1", Some("3.11.2")),
            ("python:3.12-slim", Some("3.11.2")),
            ("debian:13", Some("12")),
            ("debian:12.5", Some("12")),
            (&digest, Some("20.20.2")),
        ] {
            assert!(!is_named(text, version), "{text}");
        }
    }
}
