//! How a machine joins. It connects to a member, sees by the fingerprint in its token that it is one, and shows the
//! token. The member uses the token up in the database and hands over the authority, by which the machine makes its own
//! certificate. Its private key never leaves it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::secrets::hash_key;
use isopod_store::{JoinOutcome, Joining, Store};
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::certificate::{hash_of_key, make_key};
use crate::identity::{Identity, IdentityError};
use crate::server_id::ServerId;
use crate::tls::joining_config;
use crate::token::JoinTarget;

/// How long one side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_MESSAGE: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinRequest {
    secret: String,
    server: String,
    /// Hexadecimal digits.
    key_hash: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JoinAnswer {
    Welcome { authority: String, authority_key: String, database: Option<String> },
    Refused { reason: String },
}

/// Why a machine could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("could not connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("{address} did not prove that it is a member of the token's cluster")]
    Tls { address: String, source: io::Error },
    #[error("could not talk to {address}")]
    Talk { address: String, source: io::Error },
    #[error("{0} took too long")]
    Slow(String),
    #[error("the cluster refused this server: {0}")]
    Refused(String),
    #[error("could not make the certificates")]
    Identity(#[from] IdentityError),
    #[error("could not make a key")]
    Key(#[from] rcgen::Error),
    #[error("could not prepare TLS")]
    Prepare(#[from] rustls::Error),
}

/// Joins the cluster of the token as this server. The result is to be written to the state directory.
///
/// # Errors
/// If no member is at the address, or the token is not valid.
pub async fn join(target: &JoinTarget, server: &ServerId) -> Result<Identity, JoinError> {
    let slow = |_| JoinError::Slow(target.address.clone());
    tokio::time::timeout(TIMEOUT, try_join(target, server)).await.map_err(slow)?
}

async fn try_join(target: &JoinTarget, server: &ServerId) -> Result<Identity, JoinError> {
    let address = || target.address.clone();
    let key = make_key()?;
    let request = JoinRequest {
        secret: target.token.secret().to_owned(),
        server: server.to_string(),
        key_hash: hex::encode(hash_of_key(&key)?),
    };
    let stream = TcpStream::connect(&target.address).await;
    let stream = stream.map_err(|source| JoinError::Connect { address: address(), source })?;
    let config = Arc::new(joining_config(target.token.fingerprint())?);
    // Which member answers is not known. The verifier asks for the authority's signature and for no name.
    let name =
        ServerName::try_from("node.isopod.internal").map_err(|_| rustls::Error::General("bad name".to_owned()))?;
    let connected = TlsConnector::from(config).connect(name, stream).await;
    let mut stream = connected.map_err(|source| JoinError::Tls { address: address(), source })?;
    let answer =
        exchange(&mut stream, &request).await.map_err(|source| JoinError::Talk { address: address(), source })?;
    match answer {
        JoinAnswer::Refused { reason } => Err(JoinError::Refused(reason)),
        JoinAnswer::Welcome { authority, authority_key, database } => {
            Ok(Identity::of_member(server, key, authority, authority_key, database)?)
        }
    }
}

async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &JoinRequest) -> io::Result<JoinAnswer> {
    stream.write_all(&serde_json::to_vec(request)?).await?;
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.take(MAX_MESSAGE).read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// The member's side.
#[derive(Clone, Debug)]
pub(crate) struct Doorkeeper {
    pub(crate) store: Store,
    pub(crate) identity: Arc<Identity>,
    /// What machines that join are told.
    pub(crate) database: Option<String>,
}

impl Doorkeeper {
    /// Answers a machine that asks to join.
    pub(crate) async fn answer(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let answered = tokio::time::timeout(TIMEOUT, async {
            let mut text = Vec::new();
            (&mut stream).take(MAX_MESSAGE).read_to_end(&mut text).await?;
            let answer = match serde_json::from_slice(&text) {
                Ok(request) => self.decide(&request).await,
                Err(_) => refused("the request is not one of this version"),
            };
            stream.write_all(&serde_json::to_vec(&answer)?).await?;
            stream.shutdown().await
        });
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a machine that asked to join went away"),
            Err(_) => tracing::debug!("a machine that asked to join took too long"),
        }
    }

    async fn decide(&self, request: &JoinRequest) -> JoinAnswer {
        let Ok(server) = ServerId::parse(&request.server) else { return refused("its id is not valid") };
        let mut key_hash = [0; 32];
        if hex::decode_to_slice(&request.key_hash, &mut key_hash).is_err() {
            return refused("the hash of its key is not valid");
        }
        // The node tells when its certificate ends once it runs.
        let joining = Joining { server: server.as_str(), key_hash: &key_hash, certificate_until: Timestamp::now() };
        match self.store.join_cluster(&hash_key(&request.secret), &joining).await {
            Ok(JoinOutcome::Joined) => {
                tracing::info!(%server, "a server joined the cluster");
                let (authority, authority_key) = self.identity.authority_pem();
                JoinAnswer::Welcome {
                    authority: authority.to_owned(),
                    authority_key: authority_key.to_owned(),
                    database: self.database.clone(),
                }
            }
            Ok(JoinOutcome::InvalidToken) => {
                tracing::warn!(%server, "refused a server that wanted to join: its token is not valid");
                refused(
                    "the token was used, was revoked, has expired, or never existed; `isopod cluster token` makes a new one",
                )
            }
            Ok(JoinOutcome::IdTaken) => {
                refused("a server with this id is a member already; `isopod cluster remove` removes it first")
            }
            Err(error) => {
                tracing::error!(error = isopod_wire::error_chain(&error), "could not let a server join");
                refused("the database cannot be used at the moment; try again")
            }
        }
    }
}

fn refused(reason: &str) -> JoinAnswer {
    JoinAnswer::Refused { reason: reason.to_owned() }
}
