//! Live events about agents' sandboxes. The last hundred events of each agent are kept, to replay them to followers
//! that connect late or reconnect.
//!
//! Sandboxes choose the contents of events, and followers read as slowly as they like. So everything here is limited:
//! the size of events, what is kept per agent, what is queued per follower, and both in total. If a limit is exceeded,
//! the oldest is dropped first, from the team that uses the most.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::TeamId;
use isopod_store::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// The followers and the events for replay.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Written with every event and by every follower. Locked only briefly.
    state: Mutex<HubState>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct HubState {
    agents: HashMap<AgentName, Kept>,
    followers: HashMap<TeamId, HashMap<u64, Follower>>,
    next_follower: u64,
    /// The number of streams by caller.
    streams: HashMap<String, u32>,
    /// The bytes kept for each team's agents. No entry is zero.
    kept_bytes: HashMap<TeamId, usize>,
    /// The bytes queued for followers. An event that is queued twice counts twice.
    waiting_bytes: usize,
    last_sweep: Option<Instant>,
}

/// A team's agent, or `None` for events without one.
type AgentName = (TeamId, Option<String>);

/// The events kept for one agent.
#[derive(Debug)]
struct Kept {
    events: VecDeque<Arc<HubEvent>>,
    bytes: usize,
    last: Instant,
}

/// The queue of one follower.
#[derive(Debug)]
struct Follower {
    agent: Option<String>,
    waiting: VecDeque<Arc<HubEvent>>,
    bytes: usize,
    notify: Arc<Notify>,
    /// It was too slow and gets nothing more.
    is_cut_off: bool,
}

/// One event.
#[derive(Debug)]
pub(crate) struct HubEvent {
    /// Increases, also from one server process to the next.
    pub(crate) id: u64,
    agent: Option<String>,
    /// `sandbox_status`, `git_operation`, `command_output` or `pr_created`.
    pub(crate) kind: &'static str,
    /// JSON.
    pub(crate) data: Box<str>,
}

/// The stream of a follower: first missed events, then new ones.
#[derive(Debug)]
pub(crate) struct Following {
    hub: Arc<Hub>,
    team: TeamId,
    number: u64,
    caller: String,
    notify: Arc<Notify>,
}

/// The caller has the maximum number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("you already follow {MAX_FOLLOWERS} streams")]
pub(crate) struct TooManyFollowers;

const KEPT: usize = 100;
const REPLAYED: usize = 10;
const MAX_FOLLOWERS: u32 = 10;
/// A follower that is further behind is cut off. It reconnects with the id of its last event.
const MAX_BEHIND: usize = 1024;
const MAX_AGENTS: usize = 10_000;
/// The maximum length of a text in an event. The full text is in the command's own stream and, within its limit, in the
/// history.
pub(super) const TEXT_BYTES: usize = 4 << 10;
/// The maximum size of an event.
const EVENT_BYTES: usize = 32 << 10;
/// The limits on kept events, per agent and in total.
const AGENT_BYTES: usize = 256 << 10;
const ALL_KEPT_BYTES: usize = 32 << 20;
/// The limits on queued events, per follower and in total.
const FOLLOWER_BYTES: usize = 1 << 20;
const ALL_WAITING_BYTES: usize = 32 << 20;
/// An agent's events are dropped if nothing has happened to it for this long.
const IDLE: Duration = Duration::from_secs(3600);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        // Milliseconds with room for a thousand events each, so that later servers start with larger numbers.
        let start = u64::try_from(Timestamp::now().0).unwrap_or_default() << 10;
        Arc::new(Self { state: Mutex::default(), next_id: AtomicU64::new(start) })
    }

    pub(crate) fn publish(&self, team: &TeamId, agent: Option<&str>, kind: &'static str, data: Value) {
        self.publish_at(team, agent, kind, data, Instant::now());
    }

    fn publish_at(&self, team: &TeamId, agent: Option<&str>, kind: &'static str, data: Value, now: Instant) {
        let data = bounded(data);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbered under the lock, so that numbers increase in the order of events.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let event = Arc::new(HubEvent { id, agent: agent.map(str::to_owned), kind, data });
        state.sweep(now);
        state.keep(team, Arc::clone(&event), now);
        state.deliver(team, &event);
    }

    /// Follows an agent or a whole team. Replays everything kept after `last`, or the last ten events.
    pub(crate) fn follow(
        self: &Arc<Self>,
        team: &TeamId,
        agent: Option<String>,
        last: Option<u64>,
        caller: &str,
    ) -> Result<Following, TooManyFollowers> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.streams.entry(caller.to_owned()).or_default();
        if *count >= MAX_FOLLOWERS {
            return Err(TooManyFollowers);
        }
        *count += 1;
        let missed = state.missed(team, agent.as_deref(), last);
        let number = state.next_follower;
        state.next_follower += 1;
        let notify = Arc::new(Notify::new());
        let bytes = missed.iter().map(|event| event.bytes()).sum();
        state.waiting_bytes += bytes;
        let follower = Follower { agent, waiting: missed, bytes, notify: Arc::clone(&notify), is_cut_off: false };
        state.followers.entry(team.clone()).or_default().insert(number, follower);
        state.cut_off_slow_followers();
        Ok(Following { hub: Arc::clone(self), team: team.clone(), number, caller: caller.to_owned(), notify })
    }
}

impl Following {
    /// The next event. `None` if the follower was cut off.
    pub(crate) async fn next(&mut self) -> Option<Arc<HubEvent>> {
        loop {
            if let Some(answer) = self.take() {
                return answer;
            }
            // What arrives in between is not missed, because it leaves a permit.
            self.notify.notified().await;
        }
    }

    /// The next queued event. The inner `None` means that the stream has ended.
    fn take(&self) -> Option<Option<Arc<HubEvent>>> {
        let mut state = self.hub.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let Some(follower) = state.followers.get_mut(&self.team).and_then(|team| team.get_mut(&self.number)) else {
            return Some(None);
        };
        if follower.is_cut_off {
            return Some(None);
        }
        let event = follower.waiting.pop_front()?;
        follower.bytes -= event.bytes();
        state.waiting_bytes -= event.bytes();
        Some(Some(event))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = state.followers.get_mut(&self.team) {
            let gone = team.remove(&self.number);
            if team.is_empty() {
                state.followers.remove(&self.team);
            }
            state.waiting_bytes -= gone.map_or(0, |follower| follower.bytes);
        }
        if let Some(count) = state.streams.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                state.streams.remove(&self.caller);
            }
        }
    }
}

impl HubEvent {
    /// Its approximate size in memory.
    fn bytes(&self) -> usize {
        self.data.len() + self.agent.as_ref().map_or(0, String::len) + 128
    }
}

impl HubState {
    /// Keeps an event for replay.
    fn keep(&mut self, team: &TeamId, event: Arc<HubEvent>, now: Instant) {
        let name = (team.clone(), event.agent.clone());
        if self.agents.len() >= MAX_AGENTS && !self.agents.contains_key(&name) {
            self.drop_quietest();
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
        while self.kept_bytes.values().sum::<usize>() > ALL_KEPT_BYTES && self.drop_quietest() {}
    }

    /// Queues an event for followers, and cuts off those that are too slow.
    fn deliver(&mut self, team: &TeamId, event: &Arc<HubEvent>) {
        let followers = self.followers.get_mut(team).into_iter().flat_map(HashMap::values_mut);
        for follower in followers {
            let is_wanted = follower.agent.is_none() || follower.agent == event.agent;
            if !is_wanted || follower.is_cut_off {
                continue;
            }
            if follower.waiting.len() >= MAX_BEHIND || follower.bytes + event.bytes() > FOLLOWER_BYTES {
                self.waiting_bytes -= follower.cut_off();
                continue;
            }
            follower.waiting.push_back(Arc::clone(event));
            follower.bytes += event.bytes();
            self.waiting_bytes += event.bytes();
            follower.notify.notify_one();
        }
        self.cut_off_slow_followers();
    }

    /// Cuts off the followers with the longest queues until the total is within its limit.
    fn cut_off_slow_followers(&mut self) {
        while self.waiting_bytes > ALL_WAITING_BYTES {
            let all = self.followers.values_mut().flat_map(HashMap::values_mut);
            let Some(slowest) = all.max_by_key(|follower| follower.bytes).filter(|slowest| slowest.bytes > 0) else {
                return;
            };
            self.waiting_bytes -= slowest.cut_off();
        }
    }

    /// The newest missed events, as many as may be queued for one follower.
    fn missed(&self, team: &TeamId, agent: Option<&str>, last: Option<u64>) -> VecDeque<Arc<HubEvent>> {
        let is_wanted =
            |(owner, name): &&AgentName| owner == team && agent.is_none_or(|agent| name.as_deref() == Some(agent));
        let names = self.agents.keys().filter(is_wanted);
        let kept = names.filter_map(|name| self.agents.get(name)).flat_map(|kept| &kept.events).cloned();
        let mut events: Vec<_> = kept.filter(|event| last.is_none_or(|last| event.id > last)).collect();
        events.sort_unstable_by_key(|event| event.id);
        let max_count = if last.is_none() { REPLAYED } else { MAX_BEHIND };
        let mut room = FOLLOWER_BYTES;
        let fits = |event: &&Arc<HubEvent>| match room.checked_sub(event.bytes()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        let count = events.iter().rev().take(max_count).take_while(fits).count();
        events.split_off(events.len() - count).into()
    }

    /// Drops agents to which nothing has happened for a long time.
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

    /// Drops the quietest agent of the team that uses the most. Returns whether there was one.
    fn drop_quietest(&mut self) -> bool {
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
    /// Returns how many bytes were queued.
    fn cut_off(&mut self) -> usize {
        self.is_cut_off = true;
        self.waiting = VecDeque::new();
        self.notify.notify_one();
        std::mem::take(&mut self.bytes)
    }
}

/// The event's data as JSON, with long texts truncated. Then `truncated` is set.
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
    let mut short_data: serde_json::Map<String, Value> = known.into_iter().collect();
    short_data.insert("truncated".to_owned(), json!(true));
    Value::Object(short_data).to_string().into()
}

/// Returns whether something was truncated.
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

    /// The events queued for a follower.
    fn waiting(following: &mut Following) -> Vec<Arc<HubEvent>> {
        std::iter::from_fn(|| following.next().now_or_never().flatten()).collect()
    }

    fn number(event: &HubEvent) -> i64 {
        event.data.parse().unwrap()
    }

    /// The bytes that the hub holds, recounted.
    fn held(hub: &Hub) -> (usize, usize) {
        let state = hub.state.lock().unwrap();
        let kept = state.agents.values().flat_map(|kept| &kept.events).map(|event| event.bytes()).sum();
        let waiting = state.followers.values().flat_map(HashMap::values);
        let waiting = waiting.flat_map(|follower| &follower.waiting).map(|event| event.bytes()).sum();
        assert_eq!(state.kept_bytes.values().sum::<usize>(), kept, "the counters are right");
        assert_eq!(state.waiting_bytes, waiting, "the counters are right");
        (kept, waiting)
    }

    /// Replays the last ten events, or all since the last one seen. Each agent has its own.
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

    /// Events of any size, for any number of agents and followers that never read.
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
        assert!(hub.state.lock().unwrap().agents.values().all(|kept| kept.bytes <= AGENT_BYTES));
        drop(asleep);
        assert!(hub.state.lock().unwrap().followers.is_empty());
        let mut patient = hub.follow(&quiet, None, None, "q").unwrap();
        assert_eq!(waiting(&mut patient).len(), 1, "who takes little loses nothing");
    }

    /// Many teams, each with a follower that never reads but is within its own limit.
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
        for n in 1..=i64::try_from(MAX_BEHIND).unwrap() + 1 {
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
        let state = hub.state.lock().unwrap();
        let mut names: Vec<_> = state.agents.keys().filter_map(|(_, name)| name.as_deref()).collect();
        names.sort_unstable();
        assert_eq!(names, ["new", "other"]);
    }
}
