//! A real S3 server (moto) for a test, and a proxy in front of it that fails on demand.
//!
//! The server is installed into a virtual environment in the user's cache directory on first use.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isopod_storage::{Credentials, S3Settings, S3Store};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Random;

/// A running server with an empty bucket called `bucket`.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts the server. Returns `None` if there is no home directory to install it in.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(None).await
    }

    /// Like `start`, but from the fifth request on, only requests with a valid signature are accepted. Also returns the
    /// key.
    pub(crate) async fn start_with_keys() -> Option<(Self, String, String)> {
        let server = Self::start_with(Some("4")).await?;
        // The other three of the four requests: create a user with full access to buckets, and a key.
        const POLICY: &str = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C\
            %22Action%22%3A%22s3%3A%2A%22%2C%22Resource%22%3A%22%2A%22%7D%5D%7D";
        server.ask_iam("Action=CreateUser&UserName=u").await;
        server.ask_iam(&format!("Action=PutUserPolicy&UserName=u&PolicyName=p&PolicyDocument={POLICY}")).await;
        let key = server.ask_iam("Action=CreateAccessKey&UserName=u").await;
        let part = |name: &str| {
            let (_, rest) = key.split_once(&format!("<{name}>")).unwrap();
            rest.split_once('<').unwrap().0.to_owned()
        };
        Some((server, part("AccessKeyId"), part("SecretAccessKey")))
    }

    async fn ask_iam(&self, body: &str) -> String {
        let signed =
            "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=x";
        let body = format!("{body}&Version=2010-05-08");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {signed}\r\nConnection: close\r\n\
            Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
        answer
    }

    async fn start_with(requests_without_keys: Option<&str>) -> Option<Self> {
        let python = environment()?;
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(python.join("bin/moto_server"))
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .envs(requests_without_keys.map(|count| ("INITIAL_NO_AUTH_ACTION_COUNT", count)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, address };
        server.make_bucket().await;
        Some(server)
    }

    async fn make_bucket(&self) {
        // The server takes a while to start. The bucket is created with a plain request, because our client cannot
        // create one.
        let request = "PUT /bucket HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        for _ in 0..600 {
            if let Ok(mut stream) = TcpStream::connect(self.address).await {
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.contains(" 200 "), "{answer}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn settings(address: SocketAddr) -> S3Settings {
    let credentials =
        Credentials { access_key: "test-key".into(), secret_key: "test-secret".into(), session_token: None };
    let mut settings = S3Settings::new("bucket", "us-east-1", credentials);
    settings.endpoint = Some(format!("http://{address}"));
    settings.request_timeout = Duration::from_secs(10);
    settings
}

pub(crate) fn store(address: SocketAddr) -> Arc<S3Store> {
    Arc::new(S3Store::new(settings(address)).unwrap())
}

/// Where moto is installed, or will be.
fn environment() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("HOME")?).join(".cache/isopod/moto-venv");
    super::install::install_once(&path, "bin/moto_server", || {
        let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&path).status();
        let installed = Command::new(path.join("bin/pip")).args(["install", "-q", "moto[server]"]).status();
        let is_well = made.is_ok_and(|status| status.success()) && installed.is_ok_and(|status| status.success());
        assert!(is_well, "install moto[server]: python3-venv and a registry of Python packages are needed");
    });
    Some(path)
}

/// A failure rate that stands for no response at all.
const HANG: u32 = 1000;

/// A proxy between a client and the server that causes failures.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    percent: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr, seed: u64) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let percent = Arc::new(AtomicU32::new(0));
        let counter = Arc::new(AtomicU64::new(seed));
        let rate = percent.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (rate, counter) = (rate.clone(), counter.clone());
                tokio::spawn(async move { pass(client, server, &rate, &counter).await });
            }
        });
        Self { address, percent, task }
    }

    /// From now on, nothing is answered.
    pub(crate) fn hang(&self) {
        self.percent.store(HANG, Ordering::Relaxed);
    }

    /// From now on, this percentage of requests fails.
    pub(crate) fn fail(&self, percent: u32) {
        self.percent.store(percent, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Handles one request: forwards it, or causes a failure of some kind.
async fn pass(mut client: TcpStream, server: SocketAddr, rate: &AtomicU32, counter: &AtomicU64) -> Option<()> {
    let request = read_request(&mut client).await?;
    let mut random = Random(counter.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
    let rate = rate.load(Ordering::Relaxed);
    let kind = match rate {
        HANG => 3,
        _ if random.below(100) < u64::from(rate) => random.below(6),
        _ => 99,
    };
    match kind {
        0 => return refuse(&mut client, "500 Internal Server Error", "InternalError").await,
        1 => return refuse(&mut client, "503 Slow Down", "SlowDown").await,
        // The connection ends, or there is never a response.
        2 => return None,
        3 => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return None;
        }
        _ => {}
    }
    let mut upstream = TcpStream::connect(server).await.ok()?;
    if kind == 5 {
        // Forward half of the request, and then cut the connection on both sides.
        upstream.write_all(&request[..request.len() / 2]).await.ok()?;
        return None;
    }
    upstream.write_all(&request).await.ok()?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await.ok()?;
    // The request is executed, but half of the response is lost.
    let told = if kind == 4 { answer.len() / 2 } else { answer.len() };
    client.write_all(&answer[..told]).await.ok()
}

async fn refuse(client: &mut TcpStream, status: &str, code: &str) -> Option<()> {
    let body = format!("<Error><Code>{code}</Code></Error>");
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes()).await.ok()
}

/// Reads a whole request, and changes it so that the server closes the connection after it.
async fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while bytes.len() < head + 4 + length.unwrap_or(0) {
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let mut request = (text + "\r\nConnection: close\r\n\r\n").into_bytes();
    request.extend_from_slice(&bytes[head + 4..]);
    Some(request)
}
