//! A client for sandboxes of Isopod and of any other server with E2B's API.
//!
//! - [`sandbox`]: a server and a key. Creates, finds, pauses and ends sandboxes.
//! - [`guest`]: the programs inside one sandbox. Processes, terminals, files and watches, over a Unix socket on this
//!   machine or through a server's edge.
//! - [`tool`]: one sandbox as a tool of an agent.
//! - [`storage`]: the files of an execution. [`toolkit`]: tools for an agent in its sandbox. Only for Isopod's servers.
//! - [`interpreter`]: code that runs inside one sandbox and keeps its state.
//!
//! Streams end with a result or with an error, never silently. A slow reader slows the sender down. Nothing here reads
//! the environment. If a handle is dropped, its process or sandbox keeps running, except code of the interpreter, which
//! is interrupted.
//!
//! ```no_run
//! use isopod_client::guest::{Event, StartProcess};
//! use isopod_client::{Client, ClientConfig, NewSandbox};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(ClientConfig {
//!     api_url: "http://localhost:3000".into(),
//!     api_key: "e2b_0123456789".into(),
//!     sandbox_url: Some("http://localhost:3000".into()),
//!     domain: None,
//! })?;
//! let sandbox = client.create(NewSandbox::new("base")).await?;
//! let guest = sandbox.guest();
//!
//! // Run a command and keep what it writes.
//! let output = guest.run("echo hello; exit 3").await?;
//! assert_eq!((output.text().as_str(), output.ended.exit_code), ("hello\n", 3));
//!
//! // Or follow it, and write to it from another task.
//! let mut process = guest.start(StartProcess::new("cat").with_stdin()).await?;
//! let input = process.handle();
//! tokio::spawn(async move {
//!     input.send_stdin("over there\n").await?;
//!     input.close_stdin().await
//! });
//! while let Some(event) = process.next().await? {
//!     match event {
//!         Event::Stdout(bytes) => println!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::End(ended) => println!("{}", ended.status),
//!         _ => {}
//!     }
//! }
//!
//! guest.write_file("/home/user/notes.txt", "remember").await?;
//! let notes = guest.read_file("/home/user/notes.txt").await?.collect().await?;
//! assert_eq!(notes, "remember");
//!
//! let executed = sandbox.run_code("1 + 1").await?.collect().await?;
//! assert_eq!(executed.results[0].text.as_deref(), Some("2"));
//!
//! sandbox.kill().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Requests are validated before anything is sent:
//!
//! ```
//! use isopod_client::{BaseUrl, Client, ClientConfig, SandboxId};
//!
//! let base: BaseUrl = "http://localhost:3000/".parse().unwrap();
//! assert_eq!(base.to_string(), "http://localhost:3000");
//! assert!("../etc".parse::<SandboxId>().is_err());
//! assert!(Client::new(ClientConfig { api_url: "localhost".into(), ..ClientConfig::default() }).is_err());
//! ```

pub mod sandbox;
pub mod storage;
pub mod tool;
pub mod toolkit;

pub use isopod_guest_client::guest::{self, Guest, GuestError};
pub use isopod_guest_client::interpreter::{self, Interpreter};
pub use isopod_guest_client::transport::{BaseUrl, Connector, TransportError, Trust, TrustError, UrlError};
pub use isopod_wire::SandboxId;
pub use sandbox::{ApiError, Client, ClientConfig, NewSandbox, Sandbox};
pub use storage::FileStorage;
pub use tool::SandboxTool;
pub use toolkit::Toolkit;
