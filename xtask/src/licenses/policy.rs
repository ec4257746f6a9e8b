//! What the program may contain. Every line has its reason.

/// Licenses under which a crate can be part of a program that is distributed under Apache-2.0.
pub(super) const ALLOWED: &[&str] = &[
    // Permissive; a copyright notice is all they ask for.
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    // Permissive, and ask for nothing in binaries.
    "BSL-1.0",
    "Unlicense",
    // The exception only permits more.
    "Apache-2.0 WITH LLVM-exception",
    // Data of the Unicode standard; permissive.
    "Unicode-3.0",
];

/// A crate whose license is judged by hand.
pub(super) struct Exception {
    /// The crate's name.
    pub(super) name: &'static str,
    /// Its license field, so that the exception ends when the license changes. Empty if it has none.
    pub(super) license: &'static str,
    /// Why it may be part of the program.
    pub(super) reason: &'static str,
}

/// There are none. An example: a crate that names only a file, which is the text of the MIT license.
pub(super) const EXCEPTIONS: &[Exception] = &[];

/// Where crates may come from.
pub(super) const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates of which the program has one version, and why.
pub(super) const ONLY_ONCE: &[(&str, &str)] = &[
    ("rustls", "a second version would have its own settings, and its own holes to fix"),
    ("ring", "a second version would be a second implementation of cryptography, in megabytes"),
    ("rustls-webpki", "certificates must be checked in one way"),
    ("tokio", "two runtimes do not share their drivers, and panic when mixed"),
    ("hyper", "its types are part of our interfaces"),
    ("http", "its types are part of our interfaces"),
    ("axum", "its types are part of our interfaces"),
    ("rustix", "its types are part of our interfaces"),
    ("serde", "two versions do not know each other's traits"),
    ("serde_json", "its values are part of our interfaces"),
    ("tar", "archives are untrusted, and must be read in one way"),
    ("zlib-rs", "archives are untrusted, and must be read in one way"),
];

/// Crates that the program never has, and why.
pub(super) const BANNED: &[(&str, &str)] = &[
    ("openssl-sys", "rustls does TLS; the program must not need the host's OpenSSL"),
    ("native-tls", "rustls does TLS; the program must not need the host's OpenSSL"),
];
