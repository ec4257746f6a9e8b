//! What happens to agents' sandboxes, for those who follow it live: the last hundred events of each agent are kept
//! to be told again to who comes late or comes back.
//!
//! What events say is chosen in sandboxes, and followers read as slowly as they like. So everything here has a size:
//! events, what is kept of an agent, what waits for a follower, and both in all. Where that is too little, the oldest
//! goes first, of the team that has the most.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::TeamId;
use isopod_store::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// The followers and what they may have missed.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Written with every event and by every follower; held for a few instructions.
    books: Mutex<Books>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Books {
    agents: HashMap<AgentName, Kept>,
    followers: HashMap<TeamId, HashMap<u64, Follower>>,
    next_follower: u64,
    /// Streams by who follows them.
    places: HashMap<String, u32>,
    /// Of what is kept of each team's agents. Never empty.
    kept_bytes: HashMap<TeamId, usize>,
    /// Of what waits for followers. An event that waits for two counts twice.
    waiting_bytes: usize,
    last_sweep: Option<Instant>,
}

/// A team's agent, or what happens without one.
type AgentName = (TeamId, Option<String>);

/// What is kept of one agent.
#[derive(Debug)]
struct Kept {
    events: VecDeque<Arc<HubEvent>>,
    bytes: usize,
    last: Instant,
}

/// What waits for one follower.
#[derive(Debug)]
struct Follower {
    agent: Option<String>,
    waiting: VecDeque<Arc<HubEvent>>,
    bytes: usize,
    came: Arc<Notify>,
    /// It was too slow: it gets nothing more.
    is_cut_off: bool,
}

/// One event.
#[derive(Debug)]
pub(crate) struct HubEvent {
    /// Grows, also from one server process to the next.
    pub(crate) id: u64,
    agent: Option<String>,
    /// `sandbox_status`, `git_operation`, `command_output` or `pr_created`.
    pub(crate) kind: &'static str,
    /// JSON.
    pub(crate) data: Box<str>,
}

/// What a follower gets: first what it missed, then what comes.
#[derive(Debug)]
pub(crate) struct Following {
    hub: Arc<Hub>,
    team: TeamId,
    number: u64,
    caller: String,
    came: Arc<Notify>,
}

/// The caller follows as much as one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("you follow {MAX_FOLLOWERS} streams already")]
pub(crate) struct TooManyFollowers;

const KEPT: usize = 100;
const REPLAYED: usize = 10;
const MAX_FOLLOWERS: u32 = 10;
/// Who is further behind is cut off, and comes back with the number of the last event that it saw.
const BEHIND: usize = 1024;
const MAX_AGENTS: usize = 10_000;
/// Of one text in an event. The whole of it is in the command's own stream and, as far as it is kept, in the history.
pub(super) const TEXT_BYTES: usize = 4 << 10;
/// Of one event.
const EVENT_BYTES: usize = 32 << 10;
/// Of what is kept of one agent, and of all.
const AGENT_BYTES: usize = 256 << 10;
const ALL_KEPT_BYTES: usize = 32 << 20;
/// Of what waits for one follower, and for all.
const FOLLOWER_BYTES: usize = 1 << 20;
const ALL_WAITING_BYTES: usize = 32 << 20;
/// What is kept of an agent goes when nothing has happened to it for so long.
const IDLE: Duration = Duration::from_secs(3600);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        // Milliseconds with room for a thousand events each: later servers begin with larger numbers.
        let start = u64::try_from(Timestamp::now().0).unwrap_or_default() << 10;
        Arc::new(Self { books: Mutex::default(), next_id: AtomicU64::new(start) })
    }

    pub(crate) fn publish(&self, team: &TeamId, agent: Option<&str>, kind: &'static str, data: Value) {
        self.publish_at(team, agent, kind, data, Instant::now());
    }

    fn publish_at(&self, team: &TeamId, agent: Option<&str>, kind: &'static str, data: Value, now: Instant) {
        let data = bounded(data);
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbered under the lock, so that numbers grow in the order of the events.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let event = Arc::new(HubEvent { id, agent: agent.map(str::to_owned), kind, data });
        books.sweep(now);
        books.keep(team, Arc::clone(&event), now);
        books.tell(team, &event);
    }

    /// Follows an agent, or all of a team. After `last` comes everything that is still kept, else the last ten.
    pub(crate) fn follow(
        self: &Arc<Self>,
        team: &TeamId,
        agent: Option<String>,
        last: Option<u64>,
        caller: &str,
    ) -> Result<Following, TooManyFollowers> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let count = books.places.entry(caller.to_owned()).or_default();
        if *count >= MAX_FOLLOWERS {
            return Err(TooManyFollowers);
        }
        *count += 1;
        let missed = books.missed(team, agent.as_deref(), last);
        let number = books.next_follower;
        books.next_follower += 1;
        let came = Arc::new(Notify::new());
        let bytes = missed.iter().map(|event| event.bytes()).sum();
        books.waiting_bytes += bytes;
        let follower = Follower { agent, waiting: missed, bytes, came: Arc::clone(&came), is_cut_off: false };
        books.followers.entry(team.clone()).or_default().insert(number, follower);
        books.relieve_followers();
        Ok(Following { hub: Arc::clone(self), team: team.clone(), number, caller: caller.to_owned(), came })
    }
}

impl Following {
    /// The next event; none for who was too far behind.
    pub(crate) async fn next(&mut self) -> Option<Arc<HubEvent>> {
        loop {
            if let Some(answer) = self.take() {
                return answer;
            }
            // What came since is not missed: it leaves a permit behind.
            self.came.notified().await;
        }
    }

    /// What is there now; the inner none means that there is nothing more to come.
    fn take(&self) -> Option<Option<Arc<HubEvent>>> {
        let mut books = self.hub.books.lock().unwrap_or_else(PoisonError::into_inner);
        let books = &mut *books;
        let Some(follower) = books.followers.get_mut(&self.team).and_then(|team| team.get_mut(&self.number)) else {
            return Some(None);
        };
        if follower.is_cut_off {
            return Some(None);
        }
        let event = follower.waiting.pop_front()?;
        follower.bytes -= event.bytes();
        books.waiting_bytes -= event.bytes();
        Some(Some(event))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut books = self.hub.books.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = books.followers.get_mut(&self.team) {
            let gone = team.remove(&self.number);
            if team.is_empty() {
                books.followers.remove(&self.team);
            }
            books.waiting_bytes -= gone.map_or(0, |follower| follower.bytes);
        }
        if let Some(count) = books.places.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                books.places.remove(&self.caller);
            }
        }
    }
}

impl HubEvent {
    /// What it costs, with what is around it.
    fn bytes(&self) -> usize {
        self.data.len() + self.agent.as_ref().map_or(0, String::len) + 128
    }
}

impl Books {
    /// Keeps an event for those who come late.
    fn keep(&mut self, team: &TeamId, event: Arc<HubEvent>, now: Instant) {
        let name = (team.clone(), event.agent.clone());
        if self.agents.len() >= MAX_AGENTS && !self.agents.contains_key(&name) {
            self.forget_the_quietest();
        }
        let of_team = self.kept_bytes.entry(team.clone()).or_default();
        let kept = self.agents.entry(name).or_insert_with(|| Kept { events: VecDeque::new(), bytes: 0, last: now });
        kept.last = now;
        kept.bytes += event.bytes();
        *of_team += event.bytes();
        kept.events.push_back(event);
        while kept.events.len() > KEPT || kept.bytes > AGENT_BYTES {
            let Some(oldest) = kept.events.pop_front() else { break };
            kept.bytes -= oldest.bytes();
            *of_team -= oldest.bytes();
        }
        while self.kept_bytes.values().sum::<usize>() > ALL_KEPT_BYTES && self.forget_the_quietest() {}
    }

    /// Gives an event to those who follow, and cuts off who does not keep up.
    fn tell(&mut self, team: &TeamId, event: &Arc<HubEvent>) {
        let followers = self.followers.get_mut(team).into_iter().flat_map(HashMap::values_mut);
        for follower in followers {
            let is_wanted = follower.agent.is_none() || follower.agent == event.agent;
            if !is_wanted || follower.is_cut_off {
                continue;
            }
            if follower.waiting.len() >= BEHIND || follower.bytes + event.bytes() > FOLLOWER_BYTES {
                self.waiting_bytes -= follower.cut_off();
                continue;
            }
            follower.waiting.push_back(Arc::clone(event));
            follower.bytes += event.bytes();
            self.waiting_bytes += event.bytes();
            follower.came.notify_one();
        }
        self.relieve_followers();
    }

    /// Cuts off those for whom the most waits, until what waits is not too much.
    fn relieve_followers(&mut self) {
        while self.waiting_bytes > ALL_WAITING_BYTES {
            let all = self.followers.values_mut().flat_map(HashMap::values_mut);
            let Some(slowest) = all.max_by_key(|follower| follower.bytes).filter(|slowest| slowest.bytes > 0) else {
                return;
            };
            self.waiting_bytes -= slowest.cut_off();
        }
    }

    /// The newest of them, as much as may wait for one follower.
    fn missed(&self, team: &TeamId, agent: Option<&str>, last: Option<u64>) -> VecDeque<Arc<HubEvent>> {
        let is_wanted =
            |(owner, name): &&AgentName| owner == team && agent.is_none_or(|agent| name.as_deref() == Some(agent));
        let names = self.agents.keys().filter(is_wanted);
        let kept = names.filter_map(|name| self.agents.get(name)).flat_map(|kept| &kept.events).cloned();
        let mut events: Vec<_> = kept.filter(|event| last.is_none_or(|last| event.id > last)).collect();
        events.sort_unstable_by_key(|event| event.id);
        let most = if last.is_none() { REPLAYED } else { BEHIND };
        let mut room = FOLLOWER_BYTES;
        let fits = |event: &&Arc<HubEvent>| match room.checked_sub(event.bytes()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        let count = events.iter().rev().take(most).take_while(fits).count();
        events.split_off(events.len() - count).into()
    }

    /// Forgets agents to which nothing has happened for long.
    fn sweep(&mut self, now: Instant) {
        if self.last_sweep.is_some_and(|last| now.duration_since(last) < SWEEP_EVERY) {
            return;
        }
        self.last_sweep = Some(now);
        let idle = |kept: &Kept| now.duration_since(kept.last) > IDLE;
        let names: Vec<AgentName> =
            self.agents.iter().filter(|(_, kept)| idle(kept)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.forget(&name);
        }
    }

    /// Forgets the agent of the greediest team to which nothing has happened for longest. Says whether there was one.
    fn forget_the_quietest(&mut self) -> bool {
        let Some(team) = self.kept_bytes.iter().max_by_key(|(_, bytes)| **bytes).map(|(team, _)| team) else {
            return false;
        };
        let of_team = self.agents.iter().filter(|((owner, _), _)| owner == team);
        let quietest = of_team.min_by_key(|(_, kept)| kept.events.back().map_or(0, |event| event.id));
        let Some(name) = quietest.map(|(name, _)| name.clone()) else { return false };
        self.forget(&name);
        true
    }

    fn forget(&mut self, name: &AgentName) {
        let Some(gone) = self.agents.remove(name) else { return };
        if let Some(of_team) = self.kept_bytes.get_mut(&name.0) {
            *of_team -= gone.bytes;
            if *of_team == 0 {
                self.kept_bytes.remove(&name.0);
            }
        }
    }
}

impl Follower {
    /// Says how many bytes waited for it.
    fn cut_off(&mut self) -> usize {
        self.is_cut_off = true;
        self.waiting = VecDeque::new();
        self.came.notify_one();
        std::mem::take(&mut self.bytes)
    }
}

/// The event's data as JSON, with long texts cut. `truncated` says so.
fn bounded(mut data: Value) -> Box<str> {
    if cut_texts(&mut data)
        && let Value::Object(fields) = &mut data
    {
        fields.insert("truncated".to_owned(), json!(true));
    }
    let text = data.to_string();
    if text.len() <= EVENT_BYTES {
        return text.into();
    }
    let short = |name: &str| data.get(name).filter(|value| value.is_string()).cloned().unwrap_or_default();
    let known = ["sandbox_id", "task_id", "command_id"].map(|name| (name.to_owned(), short(name)));
    let mut told: serde_json::Map<String, Value> = known.into_iter().collect();
    told.insert("truncated".to_owned(), json!(true));
    Value::Object(told).to_string().into()
}

/// Says whether something was cut.
fn cut_texts(data: &mut Value) -> bool {
    match data {
        Value::String(text) if text.len() > TEXT_BYTES => {
            text.truncate(text.floor_char_boundary(TEXT_BYTES));
            text.shrink_to_fit();
            true
        }
        Value::Object(fields) => fields.values_mut().fold(false, |cut, value| cut_texts(value) | cut),
        Value::Array(values) => values.iter_mut().fold(false, |cut, value| cut_texts(value) | cut),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn team() -> TeamId {
        TeamId("t".to_owned())
    }

    /// What waits for a follower.
    fn waiting(following: &mut Following) -> Vec<Arc<HubEvent>> {
        std::iter::from_fn(|| following.next().now_or_never().flatten()).collect()
    }

    fn number(event: &HubEvent) -> i64 {
        event.data.parse().unwrap()
    }

    /// Everything that the hub holds, counted anew.
    fn held(hub: &Hub) -> (usize, usize) {
        let books = hub.books.lock().unwrap();
        let kept = books.agents.values().flat_map(|kept| &kept.events).map(|event| event.bytes()).sum();
        let waiting = books.followers.values().flat_map(HashMap::values);
        let waiting = waiting.flat_map(|follower| &follower.waiting).map(|event| event.bytes()).sum();
        assert_eq!(books.kept_bytes.values().sum::<usize>(), kept, "the books are right");
        assert_eq!(books.waiting_bytes, waiting, "the books are right");
        (kept, waiting)
    }

    /// The last ten are told again, or all since the last one that was seen; each agent has its own.
    #[tokio::test]
    async fn who_comes_late_is_told_what_was_missed_and_who_follows_sees_the_rest() {
        let hub = Hub::new();
        for number in 0..150 {
            hub.publish(&team(), Some("a"), "command_output", json!(number));
            hub.publish(&team(), Some("b"), "command_output", json!(-number));
        }
        let follow = |last| hub.follow(&team(), Some("a".to_owned()), last, "me").unwrap();
        let late = waiting(&mut follow(None));
        assert_eq!(late.iter().map(|event| number(event)).collect::<Vec<_>>(), (140..150).collect::<Vec<_>>());
        assert_eq!(waiting(&mut follow(Some(late[6].id))).len(), 3);
        assert_eq!(waiting(&mut follow(Some(0))).len(), KEPT);
        let mut live = follow(None);
        assert_eq!(waiting(&mut live).len(), 10);
        hub.publish(&team(), Some("b"), "sandbox_status", json!("paused"));
        hub.publish(&team(), Some("a"), "sandbox_status", json!("running"));
        let event = live.next().await.unwrap();
        assert_eq!((event.kind, &*event.data), ("sandbox_status", "\"running\""));
        assert!(waiting(&mut hub.follow(&TeamId("other".to_owned()), None, Some(0), "x").unwrap()).is_empty());
        drop(live);
        assert_eq!(held(&hub).1, 0);
    }

    #[test]
    fn an_eleventh_stream_is_refused_until_one_ends() {
        let hub = Hub::new();
        let mut ten: Vec<_> = (0..10).map(|_| hub.follow(&team(), None, None, "me").unwrap()).collect();
        assert_eq!(hub.follow(&team(), None, None, "me").unwrap_err(), TooManyFollowers);
        assert!(hub.follow(&team(), None, None, "you").is_ok());
        ten.pop();
        assert!(hub.follow(&team(), None, None, "me").is_ok());
    }

    /// Events of any size, for any number of agents and followers who never read.
    #[test]
    fn what_is_held_has_a_limit_whatever_is_published_and_whoever_does_not_read() {
        let hub = Hub::new();
        let quiet = TeamId("quiet".to_owned());
        hub.publish(&quiet, Some("q"), "sandbox_status", json!("running"));
        let asleep: Vec<_> =
            (0..100).map(|n| hub.follow(&team(), None, None, &format!("follower {}", n / 10)).unwrap()).collect();
        let large = "x".repeat(1 << 20);
        for n in 0..100 * KEPT {
            let agent = format!("agent {}", n % 100);
            hub.publish(&team(), Some(&agent), "command_output", json!({ "sandbox_id": "s", "data": large }));
        }
        let (kept, queued) = held(&hub);
        assert!(kept <= ALL_KEPT_BYTES, "{kept}");
        assert!(kept > 100 * AGENT_BYTES / 2, "what fits is kept: {kept}");
        assert!(queued <= ALL_WAITING_BYTES, "{queued}");
        assert_eq!(queued, 0, "they are all far behind and cut off");
        assert!(hub.books.lock().unwrap().agents.values().all(|kept| kept.bytes <= AGENT_BYTES));
        drop(asleep);
        assert!(hub.books.lock().unwrap().followers.is_empty());
        let mut patient = hub.follow(&quiet, None, None, "q").unwrap();
        assert_eq!(waiting(&mut patient).len(), 1, "who takes little loses nothing");
    }

    /// Many teams, each with a follower who reads nothing and is not too far behind by itself.
    #[test]
    fn what_waits_for_all_followers_together_has_a_limit() {
        let hub = Hub::new();
        let text = "x".repeat(TEXT_BYTES);
        let mut asleep = Vec::new();
        for n in 0..100 {
            let team = TeamId(format!("t{n}"));
            asleep.push(hub.follow(&team, None, None, &team.0).unwrap());
            for _ in 0..200 {
                hub.publish(&team, None, "command_output", json!({ "data": text }));
            }
            let (kept, queued) = held(&hub);
            assert!(kept <= ALL_KEPT_BYTES && queued <= ALL_WAITING_BYTES, "{kept} {queued}");
        }
        let with_something = asleep.iter_mut().filter_map(|one| (!waiting(one).is_empty()).then_some(())).count();
        assert!((1..100).contains(&with_something), "some were cut off, and not all: {with_something}");
    }

    #[tokio::test]
    async fn who_is_too_far_behind_is_cut_off_and_comes_back() {
        let hub = Hub::new();
        let mut slow = hub.follow(&team(), None, None, "me").unwrap();
        hub.publish(&team(), Some("a"), "command_output", json!(0));
        let seen = slow.next().await.unwrap();
        for n in 1..=i64::try_from(BEHIND).unwrap() + 1 {
            hub.publish(&team(), Some("a"), "command_output", json!(n));
        }
        assert!(slow.next().await.is_none());
        drop(slow);
        let mut back = hub.follow(&team(), None, Some(seen.id), "me").unwrap();
        assert_eq!(waiting(&mut back).len(), KEPT);
    }

    #[test]
    fn long_texts_are_cut_and_that_is_said() {
        let short = bounded(json!({ "data": "short" }));
        assert_eq!(&*short, r#"{"data":"short"}"#);
        let long = bounded(json!({ "data": "é".repeat(TEXT_BYTES), "n": [{ "x": "y".repeat(9000) }] }));
        let value: Value = serde_json::from_str(&long).unwrap();
        assert_eq!((value["data"].as_str().unwrap().len(), &value["truncated"]), (TEXT_BYTES, &json!(true)));
        assert_eq!(value["n"][0]["x"].as_str().unwrap().len(), TEXT_BYTES);
        let many = bounded(json!({ "sandbox_id": "s", "all": vec!["z".repeat(4000); 100] }));
        let value: Value = serde_json::from_str(&many).unwrap();
        assert_eq!((&value["sandbox_id"], &value["truncated"], value.get("all")), (&json!("s"), &json!(true), None));
    }

    #[test]
    fn agents_to_which_nothing_happens_are_forgotten() {
        let hub = Hub::new();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        hub.publish_at(&team(), Some("old"), "sandbox_status", json!(1), at(0));
        hub.publish_at(&team(), Some("new"), "sandbox_status", json!(1), at(3000));
        hub.publish_at(&team(), Some("other"), "sandbox_status", json!(1), at(3700));
        let books = hub.books.lock().unwrap();
        let mut names: Vec<_> = books.agents.keys().filter_map(|(_, name)| name.as_deref()).collect();
        names.sort_unstable();
        assert_eq!(names, ["new", "other"]);
    }
}
