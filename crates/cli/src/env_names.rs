//! Environment variables that are read. Nothing below this crate reads any, but for the trust store of TLS, which
//! follows `SSL_CERT_FILE` and `SSL_CERT_DIR` as OpenSSL does.

/// The state directory.
pub(crate) const STATE_DIR: &str = "ISOPOD_STATE_DIR";
/// The server's settings file.
pub(crate) const CONFIG: &str = "ISOPOD_CONFIG";
/// Where the server listens.
pub(crate) const LISTEN: &str = "ISOPOD_LISTEN";
/// The server's first API key.
pub(crate) const API_KEY: &str = "ISOPOD_API_KEY";
/// A PostgreSQL database instead of a file in the state directory.
pub(crate) const DATABASE_URL: &str = "ISOPOD_DATABASE_URL";
/// What this server is called where several share a database.
pub(crate) const NODE_NAME: &str = "ISOPOD_NODE_NAME";
/// Where the server listens for the other servers of its cluster, and how they reach it.
pub(crate) const PEER_LISTEN: &str = "ISOPOD_PEER_LISTEN";
pub(crate) const PEER_ADDRESS: &str = "ISOPOD_PEER_ADDRESS";
/// The token and the server by which a machine joins a cluster.
pub(crate) const JOIN: &str = "ISOPOD_JOIN";
/// The domain of sandbox host names.
pub(crate) const DASHBOARD: &str = "ISOPOD_DASHBOARD";
pub(crate) const DOMAIN: &str = "ISOPOD_DOMAIN";
/// Other domains that the server answers for in programs of `isopod env`.
pub(crate) const ENV_DOMAINS: &str = "ISOPOD_ENV_DOMAINS";
/// Templates that the server makes ready at its start.
pub(crate) const PREPARE: &str = "ISOPOD_PREPARE";
/// The program that saves and restores the memory of sandboxes.
pub(crate) const CRIU: &str = "ISOPOD_CRIU";
/// A Redis that sessions are written through to.
pub(crate) const REDIS_URL: &str = "REDIS_URL";
/// A directory that runs have their files in, shared with others.
pub(crate) const RFS_BASE: &str = "RFS_BASE";
/// Where the sandboxes of the service come from: `local` or `remote`.
pub(crate) const BACKEND: &str = "ISOPOD_BACKEND";
/// The API of a remote backend.
pub(crate) const BACKEND_URL: &str = "ISOPOD_BACKEND_URL";
/// The edge of a remote backend.
pub(crate) const BACKEND_SANDBOX_URL: &str = "ISOPOD_BACKEND_SANDBOX_URL";
/// The workspace that sandboxes and the host share.
pub(crate) const STORAGE: &str = "ISOPOD_STORAGE";
/// Internal hosts and networks that users may name in requests.
pub(crate) const ALLOW_OUTBOUND: &str = "ISOPOD_ALLOW_OUTBOUND";
/// Private networks that sandboxes may be allowed to reach.
pub(crate) const SANDBOX_NETWORKS: &str = "ISOPOD_SANDBOX_NETWORKS";
/// Other places for images: `docker.io=https://mirror.example,…`, or `offline`.
pub(crate) const REGISTRY_MIRRORS: &str = "ISOPOD_REGISTRY_MIRRORS";
/// The agent service's host, perhaps with `http://` or `https://` before it.
pub(crate) const AGENT_HOST: &str = "AGENT_HOST";
/// The agent service's port.
pub(crate) const AGENT_PORT: &str = "AGENT_PORT";
/// The key of the search service.
pub(crate) const SEARCH_KEY: &str = "ISOPOD_SEARCH_KEY";
/// The secret that tokens of people are signed with, shared with the identity service.
pub(crate) const TEAM_TOKEN_SECRET: &str = "ISOPOD_TEAM_TOKEN_SECRET";
/// How long a command of the service may run where a request does not say, in seconds.
pub(crate) const E2B_TIMEOUT: &str = "E2B_TIMEOUT";
/// What is logged, such as `info` or `isopod_node=debug`.
pub(crate) const LOG: &str = "ISOPOD_LOG";
/// The format of log lines: `text`, `json`, or `auto`.
pub(crate) const LOG_FORMAT: &str = "ISOPOD_LOG_FORMAT";

/// Of the verbs that speak with a server, as of the official SDKs: the team's key. The server reads it for a remote
/// backend.
pub(crate) const E2B_API_KEY: &str = "E2B_API_KEY";
/// The API's address.
pub(crate) const E2B_API_URL: &str = "E2B_API_URL";
/// The address of the edge that leads into sandboxes.
pub(crate) const E2B_SANDBOX_URL: &str = "E2B_SANDBOX_URL";
/// The domain of an E2B-compatible service.
pub(crate) const E2B_DOMAIN: &str = "E2B_DOMAIN";
/// The address of the API of volumes.
pub(crate) const E2B_VOLUME_API_URL: &str = "E2B_VOLUME_API_URL";
/// Makes the official SDKs go to ports of this machine. Only ever removed.
pub(crate) const E2B_DEBUG: &str = "E2B_DEBUG";
/// Authorities to trust for https besides the system's.
pub(crate) const CA_FILE: &str = "ISOPOD_CA_FILE";
/// A file with all authorities that programs of this machine trust.
pub(crate) const SSL_CERT_FILE: &str = "SSL_CERT_FILE";

/// The same for other programs: Python's requests, curl, Node and Deno.
pub(crate) const REQUESTS_CA_BUNDLE: &str = "REQUESTS_CA_BUNDLE";
pub(crate) const CURL_CA_BUNDLE: &str = "CURL_CA_BUNDLE";
pub(crate) const NODE_EXTRA_CA_CERTS: &str = "NODE_EXTRA_CA_CERTS";
pub(crate) const DENO_CERT: &str = "DENO_CERT";
/// The user's home, where agents have their configuration.
pub(crate) const HOME: &str = "HOME";
/// Where programs are looked for.
pub(crate) const PATH: &str = "PATH";
/// The user's shell.
pub(crate) const SHELL: &str = "SHELL";
/// From `isopod env` to the process that it becomes: what the command is to see.
pub(crate) const ENV_PLAN: &str = "ISOPOD_ENV_PLAN";

/// Of OpenTelemetry: where traces go. The server sends none unless one of these two says so.
pub(crate) const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The same, for traces alone and with its whole path.
pub(crate) const OTLP_TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// `name=value,…` sent along, such as a key for the collector.
pub(crate) const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// How traces are written; ours are `http/json`.
pub(crate) const OTLP_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
/// What the server is called in traces.
pub(crate) const OTEL_SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// `name=value,…` about the server.
pub(crate) const OTEL_RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// `true` sends nothing, whatever the others say.
pub(crate) const OTEL_SDK_DISABLED: &str = "OTEL_SDK_DISABLED";

/// Where the workspace is seen, on the host and in sandboxes.
pub(crate) const STORAGE_BASE_PATH: &str = "STORAGE_BASE_PATH";
/// The bucket of the workspace: scripts that are around use the one or the other name.
pub(crate) const BUCKETS: [&str; 2] = ["ROMA_S3_BUCKET", "S3_BUCKET_NAME"];
/// The bucket's region.
pub(crate) const AWS_REGION: &str = "AWS_REGION";
/// The same, by an older name.
pub(crate) const AWS_DEFAULT_REGION: &str = "AWS_DEFAULT_REGION";
/// Another S3 server than Amazon's.
pub(crate) const AWS_ENDPOINT_URL: &str = "AWS_ENDPOINT_URL";
/// Keys of the bucket.
pub(crate) const AWS_ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
pub(crate) const AWS_SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
pub(crate) const AWS_SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
/// A file with keys that others may renew, and the part of it that counts.
pub(crate) const AWS_SHARED_CREDENTIALS_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
pub(crate) const AWS_PROFILE: &str = "AWS_PROFILE";
