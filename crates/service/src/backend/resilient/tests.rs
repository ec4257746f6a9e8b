//! The wrapper around a scripted backend, on a clock that only waiting advances.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::SystemTime;

use isopod_store::TeamId;
use tokio::time::Instant;

use super::super::{BackendState, CreateKey, Effect, ErrorKind, Place};
use super::*;

/// What happens to one create.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Made,
    /// Created, but the reply is lost.
    ReplyLost,
    /// Created a moment after the caller gave up.
    MadeLate,
    Refused(fn() -> BackendError),
    Hangs,
}

#[derive(Debug, Default)]
struct Scripted {
    creates: Mutex<VecDeque<Answer>>,
    starts: Mutex<VecDeque<fn() -> BackendError>>,
    /// All sandboxes.
    made: Mutex<Vec<BackendSandbox>>,
    late: Mutex<Vec<BackendSandbox>>,
    asked: Mutex<Vec<&'static str>>,
}

fn unavailable() -> BackendError {
    of(Effect::Unknown, None)
}

fn never_sent() -> BackendError {
    of(Effect::None, None)
}

fn of(effect: Effect, retry_after: Option<Duration>) -> BackendError {
    BackendError::Unavailable { message: "down".into(), retry_after, effect, place: Place::Backend, source: None }
}

impl Scripted {
    fn creating(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        Arc::new(Self { creates: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn note(&self, what: &'static str) {
        self.asked.lock().unwrap().push(what);
    }

    fn count(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    fn new_sandbox(&self, spec: &CreateSpec) -> BackendSandbox {
        let number = self.asked.lock().unwrap().len();
        BackendSandbox {
            id: format!("i{number}").parse().unwrap(),
            template: spec.template.clone(),
            state: BackendState::Running,
            started_at: SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64),
            ends_at: SystemTime::UNIX_EPOCH,
            metadata: spec.labelled_metadata(),
        }
    }
}

#[async_trait]
impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        self.note("create");
        // What an earlier call left pending is done by now.
        self.made.lock().unwrap().append(&mut self.late.lock().unwrap());
        let answer = self.creates.lock().unwrap().pop_front().unwrap_or(Answer::Made);
        let made = self.new_sandbox(spec);
        match answer {
            Answer::Made => {
                self.made.lock().unwrap().push(made.clone());
                Ok(made)
            }
            Answer::ReplyLost => {
                self.made.lock().unwrap().push(made);
                Err(unavailable())
            }
            Answer::MadeLate => {
                self.late.lock().unwrap().push(made);
                Err(unavailable())
            }
            Answer::Refused(error) => Err(error()),
            Answer::Hangs => std::future::pending().await,
        }
    }

    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError> {
        self.note("status");
        let made = self.made.lock().unwrap();
        made.iter().find(|made| made.id == *id).cloned().ok_or_else(|| BackendError::not_found("gone"))
    }

    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError> {
        self.note("list");
        let has = |made: &BackendSandbox| metadata.iter().all(|(key, value)| made.metadata.get(key) == Some(value));
        Ok(self.made.lock().unwrap().iter().filter(|made| has(made)).cloned().collect())
    }

    async fn start(&self, _: &SandboxId, _: Command) -> Result<CommandStream, BackendError> {
        self.note("start");
        match self.starts.lock().unwrap().pop_front() {
            Some(error) => Err(error()),
            None => Ok(CommandStream::new(futures::stream::pending())),
        }
    }

    async fn write_file(&self, _: &SandboxId, _: &str, _: Option<&str>, _: FileBody) -> Result<(), BackendError> {
        self.note("write");
        Err(unavailable())
    }

    async fn read_file(&self, _: &SandboxId, _: &str, _: Option<&str>) -> Result<FileRead, BackendError> {
        Err(BackendError::not_found("no file"))
    }

    async fn pause(&self, _: &SandboxId) -> Result<(), BackendError> {
        Ok(())
    }

    async fn resume(&self, id: &SandboxId, _: Duration) -> Result<BackendSandbox, BackendError> {
        self.status(id).await
    }

    async fn set_timeout(&self, _: &SandboxId, _: Duration) -> Result<(), BackendError> {
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError> {
        self.note("destroy");
        let mut made = self.made.lock().unwrap();
        let before = made.len();
        made.retain(|made| made.id != *id);
        Ok(made.len() < before)
    }
}

fn around(backend: &Arc<Scripted>) -> Resilient {
    Resilient::new(Arc::clone(backend) as Arc<dyn Backend>, ResilienceConfig::default())
}

fn spec() -> CreateSpec {
    CreateSpec::new(TeamId("team".into()), "base")
}

#[tokio::test(start_paused = true)]
async fn a_create_is_tried_three_times_with_growing_waits() {
    let backend = Scripted::creating([Answer::Refused(never_sent); 5]);
    let started = Instant::now();
    let failed = around(&backend).create(&spec()).await.unwrap_err();
    assert_eq!((failed.kind(), backend.asked.lock().unwrap().len()), (ErrorKind::Unavailable, 3));
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_secs(3) && waited <= Duration::from_secs(6),
        "1 to 2 s, then 2 to 4 s: {waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_will_stay_wrong_is_not_tried_again() {
    let refusals: [fn() -> BackendError; 5] = [
        || BackendError::not_found("no template"),
        || BackendError::InvalidKey { message: "who are you".into() },
        || BackendError::invalid("no"),
        || BackendError::Quota { message: "too many".into(), retry_after: None },
        || BackendError::internal("bug"),
    ];
    for refusal in refusals {
        let backend = Scripted::creating([Answer::Refused(refusal)]);
        let started = Instant::now();
        let failed = around(&backend).create(&spec()).await.unwrap_err();
        assert_eq!((failed.kind(), backend.asked.lock().unwrap().len()), (refusal().kind(), 1));
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_says_when_is_waited_for_and_one_that_says_much_later_is_handed_on() {
    let in_seven = || BackendError::Quota { message: "rate".into(), retry_after: Some(Duration::from_secs(7)) };
    let backend = Scripted::creating([Answer::Refused(in_seven), Answer::Made]);
    let started = Instant::now();
    around(&backend).create(&spec()).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(7) && started.elapsed() < Duration::from_secs(8));
    let in_an_hour = || BackendError::Quota { message: "rate".into(), retry_after: Some(Duration::from_secs(3600)) };
    let backend = Scripted::creating([Answer::Refused(in_an_hour)]);
    let failed = around(&backend).create(&spec()).await.unwrap_err();
    assert_eq!(failed.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(backend.asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_makes_one_sandbox_also_where_keys_are_unknown() {
    let backend = Scripted::creating([Answer::ReplyLost]);
    let made = around(&backend).create(&spec()).await.unwrap();
    assert_eq!(backend.count(), 1);
    assert_eq!(backend.made.lock().unwrap()[0], made);
    assert_eq!(backend.asked.lock().unwrap()[..2], ["create", "list"], "looked before it made another");
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_acted_on_late_loses_its_twin() {
    let backend = Scripted::creating([Answer::MadeLate, Answer::Made]);
    let made = around(&backend).create(&spec()).await.unwrap();
    assert_eq!(backend.count(), 1, "the other was ended");
    assert_eq!(backend.made.lock().unwrap()[0], made);
}

#[tokio::test(start_paused = true)]
async fn a_create_of_a_process_that_died_is_found_and_one_that_is_given_up_is_ended() {
    let backend = Scripted::creating([Answer::ReplyLost, Answer::Refused(unavailable), Answer::Refused(unavailable)]);
    let resilient = around(&backend);
    let spec = spec();
    backend.create(&spec).await.unwrap_err();
    let again = CreateSpec { sent_before: true, ..spec.clone() };
    let found = resilient.create(&again).await.unwrap();
    assert_eq!((backend.count(), found.template.as_str()), (1, "base"));
    assert_eq!(resilient.abandon(&CreateKey::random()).await.unwrap(), 0, "only its own");
    assert_eq!((resilient.abandon(&spec.key).await.unwrap(), backend.count()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_is_given_up() {
    let backend = Scripted::creating([Answer::Hangs; 3]);
    let started = Instant::now();
    let failed = around(&backend).create(&spec()).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() >= Duration::from_secs(180) && started.elapsed() < Duration::from_secs(190));
}

#[tokio::test(start_paused = true)]
async fn a_command_is_repeated_only_if_it_was_certainly_not_started() {
    let id: SandboxId = "i1".parse().unwrap();
    let backend = Arc::new(Scripted::default());
    backend.starts.lock().unwrap().push_back(unavailable);
    let resilient = around(&backend);
    assert!(resilient.start(&id, Command::shell("date")).await.is_err());
    assert_eq!(backend.asked.lock().unwrap().len(), 1);
    backend.starts.lock().unwrap().push_back(never_sent);
    resilient.start(&id, Command::shell("date")).await.unwrap();
    assert_eq!(backend.asked.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_written_again_and_a_stream_is_not() {
    let id: SandboxId = "i1".parse().unwrap();
    let backend = Arc::new(Scripted::default());
    let resilient = around(&backend);
    assert!(resilient.write_file(&id, "/x", None, "text".into()).await.is_err());
    assert_eq!(backend.asked.lock().unwrap().len(), 3);
    let stream = FileBody::stream(futures::stream::empty());
    assert!(resilient.write_file(&id, "/x", None, stream).await.is_err());
    assert_eq!(backend.asked.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_down_is_left_alone_and_found_when_it_is_back() {
    let backend = Scripted::creating([Answer::Refused(never_sent); 5]);
    let resilient = around(&backend);
    assert_eq!(resilient.create(&spec()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let opened = resilient.create(&spec()).await.unwrap_err();
    assert_eq!((opened.kind(), backend.asked.lock().unwrap().len()), (ErrorKind::BreakerOpen, 5));
    assert_eq!(resilient.breaker_state(), BreakerState::Open);
    let refused = resilient.status(&"i1".parse().unwrap()).await.unwrap_err();
    assert_eq!((refused.kind(), backend.asked.lock().unwrap().len()), (ErrorKind::BreakerOpen, 5));
    tokio::time::advance(refused.retry_after().unwrap()).await;
    resilient.create(&spec()).await.unwrap();
    assert_eq!(resilient.breaker_state(), BreakerState::Closed);
    let metrics = resilient.metrics();
    assert_eq!(metrics.tries(Verb::Create, "unavailable"), 5);
    assert_eq!(metrics.tries(Verb::Status, "breaker_open"), 1);
    assert_eq!(metrics.retries(Verb::Create), 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_can_be_destroyed() {
    let backend = Scripted::creating([]);
    let resilient = around(&backend);
    let made = resilient.create(&spec()).await.unwrap();
    assert!(resilient.destroy(&made.id).await.unwrap());
    assert!(!resilient.destroy(&made.id).await.unwrap());
}
