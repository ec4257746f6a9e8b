//! Selects the host's environment variables that package managers in a sandbox need too: locations of certificates,
//! proxies and package sources. Passwords, and files that the sandbox does not have, are left out.

use std::collections::BTreeMap;
use std::path::Path;

use super::generation::Base;
use super::host::{Host, HostRoot};
use super::merged_root::MergedRoot;
use super::settings::{Value, npm_entries, pip_value};

/// The kinds of variables to pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostEnvironment {
    pub certificates: bool,
    pub proxies: bool,
    /// Package indexes and registries, including those from configuration files in the caller's home directory.
    pub registries: bool,
}

impl HostEnvironment {
    pub const ALL: Self = Self { certificates: true, proxies: true, registries: true };
    pub const NONE: Self = Self { certificates: false, proxies: false, registries: false };
}

const CERTIFICATES: &[&str] = &[
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

const PROXIES: &[(&str, Value)] = &[
    ("ALL_PROXY", Value::Url),
    ("FTP_PROXY", Value::Url),
    ("HTTPS_PROXY", Value::Url),
    ("HTTP_PROXY", Value::Url),
    ("all_proxy", Value::Url),
    ("ftp_proxy", Value::Url),
    ("http_proxy", Value::Url),
    ("https_proxy", Value::Url),
];

const REGISTRIES: &[(&str, Value)] = &[
    ("GOPROXY", Value::Url),
    ("NPM_CONFIG_REGISTRY", Value::Url),
    ("PIP_DEFAULT_TIMEOUT", Value::Word),
    ("PIP_DISABLE_PIP_VERSION_CHECK", Value::Word),
    ("PIP_EXTRA_INDEX_URL", Value::Url),
    ("PIP_FIND_LINKS", Value::Url),
    ("PIP_INDEX_URL", Value::Url),
    ("PIP_TRUSTED_HOST", Value::Word),
    ("UV_DEFAULT_INDEX", Value::Url),
    ("UV_EXTRA_INDEX_URL", Value::Url),
    ("UV_INDEX_URL", Value::Url),
    ("YARN_NPM_REGISTRY_SERVER", Value::Url),
    ("npm_config_registry", Value::Url),
];

/// Selects what sandboxes on `base` get from `variables`, the caller's environment.
pub fn host_environment<I>(
    base: &Base,
    host: &HostRoot,
    wanted: HostEnvironment,
    variables: I,
) -> BTreeMap<String, String>
where
    I: IntoIterator<Item = (String, String)>,
{
    let variables: BTreeMap<String, String> = variables.into_iter().collect();
    let merged = MergedRoot { root: &base.root_layer, usr: &base.usr_layer, host_usr: base.host_usr.as_deref() };
    let exists = |path: &str| merged.exists(path);
    let mut picked: BTreeMap<String, String> = variables
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), rule(name, wanted)?.admit(value, &exists)?)))
        .collect();
    if wanted.proxies && picked.keys().any(|name| name.to_ascii_lowercase().ends_with("_proxy")) {
        add_exceptions(&variables, &mut picked);
    }
    if wanted.registries
        && let Some(home) = variables.get("HOME")
        && let Ok(host) = Host::open_root(host)
    {
        add_from_home(&host, Path::new(home), &exists, &mut picked);
    }
    picked
}

fn rule(name: &str, wanted: HostEnvironment) -> Option<Value> {
    let in_list = |list: &[(&str, Value)]| list.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let certificates = || CERTIFICATES.contains(&name).then_some(Value::File);
    let certificate = wanted.certificates.then(certificates).flatten();
    let proxy = wanted.proxies.then(|| in_list(PROXIES)).flatten();
    let registry = wanted.registries.then(|| in_list(REGISTRIES)).flatten();
    certificate.or(proxy).or(registry)
}

/// Adds the hosts to reach without the proxy. The value holds only names and networks, and is useless without a proxy.
fn add_exceptions(variables: &BTreeMap<String, String>, picked: &mut BTreeMap<String, String>) {
    for name in ["NO_PROXY", "no_proxy"] {
        if let Some(value) = variables.get(name).filter(|value| !value.contains('@')) {
            picked.insert(name.to_owned(), value.clone());
        }
    }
}

/// Adds package sources from configuration files in the caller's home directory. As on the host, variables take
/// precedence over files.
fn add_from_home(host: &Host, home: &Path, exists: &dyn Fn(&str) -> bool, picked: &mut BTreeMap<String, String>) {
    let read = |name: &str| -> Option<String> {
        let path = home.strip_prefix("/").ok()?.join(name);
        // Owner-only files are read too: they belong to the caller, and only single keys leave this function.
        host.read_own(&path)
    };
    let npm = read(".npmrc").unwrap_or_default();
    for (key, value) in npm_entries(&npm, exists) {
        if key == "registry" && !picked.contains_key("NPM_CONFIG_REGISTRY") {
            picked.entry("npm_config_registry".to_owned()).or_insert(value);
        }
    }
    let pip = read(".config/pip/pip.conf").or_else(|| read(".pip/pip.conf")).unwrap_or_default();
    for (key, variable) in [("index-url", "PIP_INDEX_URL"), ("extra-index-url", "PIP_EXTRA_INDEX_URL")] {
        if let Some(value) = pip_value(&pip, key, exists) {
            picked.entry(variable.to_owned()).or_insert(value);
        }
    }
}
