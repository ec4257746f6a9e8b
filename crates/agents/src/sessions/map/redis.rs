//! The map in Redis, under the keys that programs around E2B already read:
//!
//! ```text
//! raro:e2b_session:{run}           the sandbox of a run
//! raro:e2b_files:{run}:{file}      MD5 of an input that its sandbox has
//! isopod:session:{kind}/{id}       the sandbox of a task or an execution
//! isopod:session_server:{kind}/{id}  the server that has it
//! isopod:session_lock:{kind}/{id}    the server that creates it
//! ```
//! These keys name no team, so they belong to the first team, which is the only one on most servers. The keys of other
//! teams contain the team, so that runs of the same name do not collide:
//!
//! ```text
//! isopod:session:{kind}/{id}@{team}, isopod:session_server:…, isopod:session_lock:…
//! isopod:session_files:{kind}/{id}@{team}/{file}
//! ```
//! Each command has a short timeout. After a failure, Redis is not used for a second. That is logged once, and calls
//! continue without the map. A read without an answer says so, because Redis may know a sandbox that nobody else knows.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::{OwnerKind, TeamId, TeamOwner};
use isopod_wire::compat;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, ErrorKind, FromRedisValue, Msg, Pipeline, RedisError, cmd};
use tokio::time::Instant;

use super::{Entry, LockError, LockToken, SessionMap, Unreachable};

/// The URL is not a Redis URL.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not a usable Redis URL")]
pub(crate) struct RedisUrlError {
    url: String,
    source: RedisError,
}

pub(crate) struct RedisMap {
    client: Client,
    /// The team whose keys do not contain a team.
    first: TeamId,
    link: Mutex<Link>,
    /// Increases with every failed command.
    gaps: AtomicU64,
}

#[derive(Default)]
struct Link {
    connection: Option<MultiplexedConnection>,
    /// Redis is not used before this time.
    retry_at: Option<Instant>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const POLL_LOCK: Duration = Duration::from_millis(20);

/// Releases a lock if it is still ours. It is one step, because the lock may expire and be taken in between.
const UNLOCK: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// Writes the sandbox and the server, unless another server has the owner.
const PUT: &str = "local holder = redis.call('get', KEYS[2]) \
    if holder and holder ~= ARGV[2] then return 0 end \
    if ARGV[3] == '' then redis.call('set', KEYS[1], ARGV[1]) redis.call('set', KEYS[2], ARGV[2]) \
    else redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[3]) redis.call('set', KEYS[2], ARGV[2], 'PX', ARGV[3]) end \
    return 1";

/// Removes both, unless another server has the owner or the entry names another sandbox.
const REMOVE: &str = "local holder = redis.call('get', KEYS[2]) \
    if holder and holder ~= ARGV[1] then return 0 end \
    if ARGV[2] ~= '' and redis.call('get', KEYS[1]) ~= ARGV[2] then return 0 end \
    return redis.call('del', KEYS[1], KEYS[2])";

impl RedisMap {
    /// Does not connect yet, so that a server can start without Redis.
    pub(crate) fn new(url: &str, first: TeamId) -> Result<Self, RedisUrlError> {
        let client = Client::open(url).map_err(|source| RedisUrlError { url: without_password(url), source })?;
        Ok(Self { client, first, link: Mutex::default(), gaps: AtomicU64::new(0) })
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Option<T> {
        let mut connection = self.connection().await?;
        let asked = tokio::time::timeout(COMMAND_TIMEOUT, command.query_async(&mut connection)).await;
        self.judge(asked.unwrap_or_else(|_| Err(timed_out())))
    }

    /// Runs commands in one round trip. Returns whether they succeeded. For code that writes other keys.
    pub(crate) async fn run(&self, commands: &Pipeline) -> bool {
        let Some(mut connection) = self.connection().await else { return false };
        let asked = tokio::time::timeout(COMMAND_TIMEOUT, commands.query_async::<()>(&mut connection)).await;
        self.judge(asked.unwrap_or_else(|_| Err(timed_out()))).is_some()
    }

    /// Listens to a channel, on a connection of its own.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<impl Stream<Item = Msg> + Unpin + use<>, RedisError> {
        let subscribing = async {
            let mut listener = self.client.get_async_pubsub().await?;
            listener.subscribe(channel).await?;
            Ok(listener.into_on_message())
        };
        tokio::time::timeout(CONNECT_TIMEOUT, subscribing).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn connection(&self) -> Option<MultiplexedConnection> {
        {
            let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(connection) = &link.connection {
                return Some(connection.clone());
            }
            if link.retry_at.is_some_and(|until| until > Instant::now()) {
                self.gaps.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.client.get_multiplexed_async_connection()).await;
        let connection = self.judge(opened.unwrap_or_else(|_| Err(timed_out())))?;
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.retry_at.take().is_some() {
            tracing::info!("Redis is reachable again");
        }
        link.connection = Some(connection.clone());
        Some(connection)
    }

    fn entry_key(&self, TeamOwner { team, owner }: &TeamOwner) -> String {
        match owner.kind() {
            _ if *team != self.first => format!("isopod:session:{owner}@{}", team.0),
            OwnerKind::Run => compat::run_session_key(owner.id()),
            OwnerKind::Task | OwnerKind::Execution => format!("isopod:session:{owner}"),
        }
    }

    fn server_key(&self, owner: &TeamOwner) -> String {
        format!("isopod:session_server:{}", self.name_of(owner))
    }

    fn lock_key(&self, owner: &TeamOwner) -> String {
        format!("isopod:session_lock:{}", self.name_of(owner))
    }

    fn file_key(&self, TeamOwner { team, owner }: &TeamOwner, file: &str) -> String {
        match *team == self.first {
            true => compat::run_file_key(owner.id(), file),
            // A team id contains no slash.
            false => format!("isopod:session_files:{owner}@{}/{file}", team.0),
        }
    }

    /// An owner id contains no `@`, so this is unique.
    fn name_of(&self, TeamOwner { team, owner }: &TeamOwner) -> String {
        if *team == self.first { owner.to_string() } else { format!("{owner}@{}", team.0) }
    }

    /// The result of a command. A failed connection is dropped. If Redis refuses a single command, the connection is
    /// kept.
    fn judge<T>(&self, answer: Result<T, RedisError>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        self.gaps.fetch_add(1, Ordering::Relaxed);
        if matches!(error.kind(), ErrorKind::Server(_)) {
            tracing::warn!(error = isopod_wire::error_chain(&error), "Redis refused a command");
            return None;
        }
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.retry_at.is_none() {
            tracing::warn!(
                error = isopod_wire::error_chain(&error),
                "Redis is unreachable; sessions continue without it"
            );
        }
        link.connection = None;
        link.retry_at = Some(Instant::now() + RETRY_AFTER);
        None
    }
}

#[async_trait]
impl SessionMap for RedisMap {
    async fn lock(&self, owner: &TeamOwner, patience: Duration) -> Result<LockToken, LockError> {
        let (key, token) = (self.lock_key(owner), new_uuid());
        let give_up = Instant::now() + patience;
        loop {
            let mut command = cmd("SET");
            command.arg(&key).arg(&token).arg("NX").arg("PX").arg(millis(patience));
            match self.ask::<Option<String>>(&command).await {
                Some(Some(_)) => return Ok(LockToken(Some(token))),
                Some(None) if Instant::now() >= give_up => return Err(LockError::Busy { waited: patience }),
                Some(None) => tokio::time::sleep(POLL_LOCK).await,
                // Redis is unreachable, so this server's own locks must be enough.
                None => return Ok(LockToken(None)),
            }
        }
    }

    async fn unlock(&self, owner: &TeamOwner, token: LockToken) {
        let LockToken(Some(token)) = token else { return };
        let mut command = cmd("EVAL");
        command.arg(UNLOCK).arg(1).arg(self.lock_key(owner)).arg(token);
        let _: Option<i64> = self.ask(&command).await;
    }

    async fn get(&self, owner: &TeamOwner) -> Result<Option<Entry>, Unreachable> {
        let mut command = cmd("MGET");
        command.arg(self.entry_key(owner)).arg(self.server_key(owner));
        let asked: Option<(Option<String>, Option<String>)> = self.ask(&command).await;
        let (sandbox, server) = asked.ok_or(Unreachable)?;
        Ok(sandbox.map(|sandbox| Entry { sandbox, server }))
    }

    async fn put(&self, owner: &TeamOwner, entry: &Entry, until: Option<Timestamp>) {
        let mut command = cmd("EVAL");
        command.arg(PUT).arg(2).arg(self.entry_key(owner)).arg(self.server_key(owner));
        command.arg(&entry.sandbox).arg(entry.server.as_deref().unwrap_or_default()).arg(time_left(until));
        let _: Option<i64> = self.ask(&command).await;
    }

    async fn remove(&self, owner: &TeamOwner, server: &str, sandbox: Option<&str>) {
        let mut command = cmd("EVAL");
        command.arg(REMOVE).arg(2).arg(self.entry_key(owner)).arg(self.server_key(owner));
        command.arg(server).arg(sandbox.unwrap_or_default());
        let _: Option<i64> = self.ask(&command).await;
    }

    fn wants_hashes(&self) -> bool {
        true
    }

    async fn put_hashes(&self, owner: &TeamOwner, hashes: &[(String, Option<String>)], until: Option<Timestamp>) {
        if hashes.is_empty() || owner.owner.kind() != OwnerKind::Run {
            return;
        }
        let mut commands = Pipeline::new();
        for (file, hash) in hashes {
            let key = self.file_key(owner, file);
            match (hash, until) {
                (None, _) => commands.cmd("DEL").arg(key),
                (Some(hash), None) => commands.cmd("SET").arg(key).arg(hash),
                (Some(hash), Some(_)) => commands.cmd("SET").arg(key).arg(hash).arg("PX").arg(time_left(until)),
            };
        }
        self.run(&commands).await;
    }

    fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }
}

/// Milliseconds, at least one. Empty if there is no end.
fn time_left(until: Option<Timestamp>) -> String {
    until.map(|until| millis(Timestamp::now().until(until)).to_string()).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64)
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Hides the password of a URL, because the error is logged.
fn without_password(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => url.to_owned(),
    }
}

impl std::fmt::Debug for RedisMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisMap").finish_non_exhaustive()
    }
}
