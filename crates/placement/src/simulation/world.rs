//! The events of a run, in the order of their times.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use super::Mutant;
use super::database::{Answer, Database, Request, State};
use super::faults::{self, Fault};
use super::random::Random;
use super::server::{Effect, Server};
use crate::membership::{DatabaseTime, Epoch, ServerTime, Terms};
use crate::place::{Draw, Labels, Node, NodeId, Room, Wanted, place};

/// A message of a server to the database.
#[derive(Clone, Debug)]
pub(super) struct Send {
    pub(super) from: usize,
    pub(super) process: u32,
    pub(super) epoch: Epoch,
    pub(super) request: Request,
    pub(super) sent_at: ServerTime,
    /// What was on the machine, for a comparison with rows.
    pub(super) machine: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
enum Event {
    Tick {
        server: usize,
        process: u32,
    },
    ToDatabase(Send),
    ToServer(Send, Answer),
    /// A caller asks this server for a sandbox.
    Create {
        server: usize,
        session: Option<u32>,
    },
    /// A server asks another one, which it has chosen for a create.
    CreateOn {
        server: usize,
        session: Option<u32>,
    },
    Ask {
        server: usize,
        sandbox: usize,
    },
    Kill {
        sandbox: usize,
    },
    Break(Fault),
    Repair(Fault),
}

#[derive(Debug)]
struct Timed {
    at: i64,
    number: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What a run has shown.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) violation: Option<String>,
    pub(super) acknowledged: u32,
    pub(super) given_up: u32,
    pub(super) removed_on_return: u32,
    pub(super) refused_writes: u32,
    pub(super) sessions_replaced: u32,
    pub(super) trace: Vec<String>,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.given_up += other.given_up;
        self.removed_on_return += other.removed_on_return;
        self.refused_writes += other.refused_writes;
        self.sessions_replaced += other.sessions_replaced;
    }
}

pub(super) struct World {
    random: Random,
    pub(super) now: i64,
    events: BinaryHeap<Reverse<Timed>>,
    count: u64,
    pub(super) servers: Vec<Server>,
    pub(super) database: Database,
    is_database_up: bool,
    cut_from_database: BTreeSet<usize>,
    cut_from_peers: BTreeSet<usize>,
    stalled: BTreeSet<usize>,
    cordoned: BTreeSet<usize>,
    /// What reached a server that stands still.
    held_back: Vec<Event>,
    pub(super) acknowledged: BTreeSet<usize>,
    /// Those that are gone from their machine for a reason: a power loss, or a kill whose record may have been lost.
    pub(super) gone_rightly: BTreeSet<usize>,
    is_traced: bool,
    trace: Vec<String>,
}

const TERMS: Terms = Terms { lease: Duration::from_secs(10), grace: Duration::from_secs(20) };
/// Until then callers ask and things break.
const BUSY: i64 = 90_000;
/// Then everything is repaired, and this much later all must be well.
const REST: i64 = 60_000;
const SESSIONS: u64 = 3;
/// How long a server waits for an answer.
const TIMEOUT: i64 = 5_000;

impl World {
    pub(super) fn new(seed: u64, mutant: Mutant, is_traced: bool) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.index(3);
        let drift = |random: &mut Random| i64::try_from(random.between(0, 20_001)).unwrap() - 10_000;
        let servers = (0..count).map(|number| Server::new(number, TERMS, drift(&mut random), mutant)).collect();
        let mut world = Self {
            random,
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            servers,
            database: Database::new(count, TERMS, mutant),
            is_database_up: true,
            cut_from_database: BTreeSet::new(),
            cut_from_peers: BTreeSet::new(),
            stalled: BTreeSet::new(),
            cordoned: BTreeSet::new(),
            held_back: Vec::new(),
            acknowledged: BTreeSet::new(),
            gone_rightly: BTreeSet::new(),
            is_traced,
            trace: Vec::new(),
        };
        world.plan();
        world
    }

    /// Draws what callers will ask for and what will break.
    fn plan(&mut self) {
        let count = self.servers.len();
        for server in 0..count {
            let at = i64::try_from(self.random.between(0, 2000)).unwrap();
            self.push(at, Event::Tick { server, process: 0 });
        }
        for _ in 0..self.random.between(15, 40) {
            let at = i64::try_from(self.random.between(1000, BUSY.unsigned_abs())).unwrap();
            let session = (!self.random.once_in(4))
                .then_some(0)
                .map(|_: u32| u32::try_from(self.random.between(0, SESSIONS)).unwrap());
            let server = self.random.index(count);
            self.push(at, Event::Create { server, session });
        }
        for _ in 0..self.random.between(0, 8) {
            let at = i64::try_from(self.random.between(5000, BUSY.unsigned_abs())).unwrap();
            let sandbox = self.random.index(20);
            self.push(at, Event::Kill { sandbox });
        }
        for _ in 0..self.random.between(1, 7) {
            let at = i64::try_from(self.random.between(3000, BUSY.unsigned_abs())).unwrap();
            // Some are over within a lease, some within the grace, and some last longer.
            let limit = [8_000, 25_000, 60_000][self.random.index(3)];
            let duration = i64::try_from(self.random.between(500, limit)).unwrap();
            let fault = faults::draw(&mut self.random, count);
            self.push(at, Event::Break(fault));
            self.push((at + duration).min(BUSY), Event::Repair(fault));
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        let mut violation = None;
        while let Some(Reverse(Timed { at, event, .. })) = self.events.pop() {
            if at > BUSY + REST {
                break;
            }
            self.now = at;
            if self.is_traced {
                self.trace.push(format!("{at:>7} {event:?}"));
            }
            self.handle(event);
            violation = self.check();
            if violation.is_some() {
                break;
            }
        }
        let violation = violation.or_else(|| self.check_at_rest());
        if self.is_traced {
            self.trace.extend(violation.clone());
        }
        Outcome {
            violation,
            acknowledged: u32::try_from(self.acknowledged.len()).unwrap(),
            given_up: self.database.given_up,
            removed_on_return: self.servers.iter().map(|server| server.removed_on_return).sum(),
            refused_writes: self.database.refused_writes,
            sessions_replaced: self.sessions_replaced(),
            trace: self.trace,
        }
    }

    /// How many sessions got another sandbox because a server was given up.
    fn sessions_replaced(&self) -> u32 {
        let lost = State::Ended(super::database::Reason::NodeLost);
        let rows = self.database.rows.iter().enumerate();
        let replaced = rows.filter(|(number, row)| {
            let later = |(other, next): (usize, &super::database::Row)| other > *number && next.session == row.session;
            row.state == lost && row.session.is_some() && self.database.rows.iter().enumerate().any(later)
        });
        u32::try_from(replaced.count()).unwrap()
    }

    fn push(&mut self, at: i64, event: Event) {
        self.count += 1;
        self.events.push(Reverse(Timed { at, number: self.count, event }));
    }

    fn delay(&mut self) -> i64 {
        let limit = if self.random.once_in(20) { 4000 } else { 60 };
        i64::try_from(self.random.between(1, limit)).unwrap()
    }

    fn handle(&mut self, event: Event) {
        if event.server().is_some_and(|server| self.stalled.contains(&server)) {
            return self.held_back.push(event);
        }
        match event {
            Event::Tick { server, process } => self.tick(server, process),
            Event::ToDatabase(send) => self.reach_database(send),
            Event::ToServer(send, answer) => self.reach_server(&send, answer),
            Event::Create { server, session } => self.place(server, session),
            Event::CreateOn { server, session } => {
                let effects = self.on_running(server, |server, now| server.create(session, now));
                self.carry_out(server, effects);
            }
            Event::Ask { server, sandbox } => {
                let effects = self.on_running(server, |server, now| server.asked_for(sandbox, now));
                self.carry_out(server, effects);
            }
            Event::Kill { sandbox } => self.kill(sandbox),
            Event::Break(fault) => self.break_down(fault),
            Event::Repair(fault) => self.repair(fault),
        }
    }

    fn on_running(&mut self, server: usize, act: impl FnOnce(&mut Server, i64) -> Vec<Effect>) -> Vec<Effect> {
        let server = &mut self.servers[server];
        if server.is_running { act(server, self.now) } else { Vec::new() }
    }

    fn tick(&mut self, number: usize, process: u32) {
        let server = &self.servers[number];
        if !server.is_running || server.process != process {
            return;
        }
        let pace = i64::try_from(TERMS.renew_every().as_millis()).unwrap();
        // Every fifth time.
        let checks_rows = self.now / pace % 5 == 0;
        let effects = self.servers[number].tick(self.now, checks_rows);
        self.carry_out(number, effects);
        self.push(self.now + pace, Event::Tick { server: number, process });
    }

    fn carry_out(&mut self, from: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(send) => {
                    let at = self.now + self.delay();
                    self.push(at, Event::ToDatabase(send));
                }
                Effect::Acknowledge { sandbox } => _ = self.acknowledged.insert(sandbox),
                Effect::Ask { server, sandbox } if server == from => {
                    let effects = self.servers[from].asked_for(sandbox, self.now);
                    self.carry_out(from, effects);
                }
                Effect::Ask { server, sandbox } => {
                    if self.are_peers_connected(from, server) {
                        let at = self.now + self.delay();
                        self.push(at, Event::Ask { server, sandbox });
                    }
                }
            }
        }
    }

    fn are_peers_connected(&self, one: usize, other: usize) -> bool {
        one == other || !(self.cut_from_peers.contains(&one) || self.cut_from_peers.contains(&other))
    }

    fn is_connected(&self, server: usize) -> bool {
        self.is_database_up && !self.cut_from_database.contains(&server)
    }

    fn reach_database(&mut self, send: Send) {
        let mut answer = Answer::Lost;
        if self.is_connected(send.from) {
            answer = self.database.handle(send.from, send.epoch, send.request, self.now);
            // The answer is lost although the database has acted.
            if self.random.once_in(50) {
                answer = Answer::Lost;
            }
        }
        let wait = if answer == Answer::Lost { TIMEOUT } else { self.delay() };
        self.push(self.now + wait, Event::ToServer(send, answer));
    }

    fn reach_server(&mut self, send: &Send, mut answer: Answer) {
        let server = &mut self.servers[send.from];
        if !server.is_running || server.process != send.process {
            return;
        }
        if !self.is_database_up || self.cut_from_database.contains(&send.from) {
            answer = Answer::Lost;
        }
        let effects = server.answered(send, answer, self.now);
        self.carry_out(send.from, effects);
    }

    /// The server that a caller asks chooses one by the rules, with what the database says.
    fn place(&mut self, asked: usize, session: Option<u32>) {
        if !self.servers[asked].is_running {
            return;
        }
        let nodes: Vec<Node> = (0..self.servers.len()).map(|number| self.node(number)).collect();
        let wanted = Wanted { template: "base".to_owned(), ..Wanted::default() };
        let draw = Draw(self.random.next(), self.random.next());
        let Ok(placed) = place(&nodes, &wanted, draw) else { return };
        let chosen = nodes.iter().position(|node| node.id == placed.first.id);
        let Some(server) = chosen.filter(|server| self.are_peers_connected(asked, *server)) else { return };
        let at = self.now + self.delay();
        self.push(at, Event::CreateOn { server, session });
    }

    fn node(&self, number: usize) -> Node {
        let of_it = self.database.rows.iter().filter(|row| row.server == number && row.is_live()).count();
        let taken = u32::try_from(of_it).unwrap();
        Node {
            id: NodeId(number.to_string()),
            name: number.to_string(),
            standing: self.database.members[number].standing(DatabaseTime(self.now)),
            is_cordoned: self.cordoned.contains(&number),
            labels: Labels::new(),
            tiers: BTreeSet::new(),
            capacity: Room { sandboxes: 20, cpus: 1, memory: 1 },
            taken: Room { sandboxes: taken, cpus: 0, memory: 0 },
            templates: None,
            warm: std::collections::BTreeMap::new(),
            of_team: taken,
        }
    }

    fn kill(&mut self, sandbox: usize) {
        let Some(server) = self.database.rows.get(sandbox).map(|row| row.server) else { return };
        if self.stalled.contains(&server) {
            return;
        }
        let effects = self.on_running(server, |server, now| server.kill(sandbox, now));
        if !effects.is_empty() {
            self.gone_rightly.insert(sandbox);
        }
        self.carry_out(server, effects);
    }

    fn break_down(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { server } => self.servers[server].is_running = false,
            Fault::PowerLoss { server } => {
                self.servers[server].is_running = false;
                let machine = std::mem::take(&mut self.servers[server].machine);
                self.gone_rightly.extend(machine);
            }
            Fault::CutFromDatabase { server } => _ = self.cut_from_database.insert(server),
            Fault::CutFromPeers { server } => _ = self.cut_from_peers.insert(server),
            Fault::Stall { server } => _ = self.stalled.insert(server),
            Fault::DatabaseDown => self.is_database_up = false,
            Fault::Cordon { server } => _ = self.cordoned.insert(server),
        }
    }

    fn repair(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { server } | Fault::PowerLoss { server } => {
                if !self.servers[server].is_running {
                    self.servers[server].start();
                    let process = self.servers[server].process;
                    self.push(self.now, Event::Tick { server, process });
                }
            }
            Fault::CutFromDatabase { server } => _ = self.cut_from_database.remove(&server),
            Fault::CutFromPeers { server } => _ = self.cut_from_peers.remove(&server),
            Fault::Stall { server } => {
                self.stalled.remove(&server);
                for event in std::mem::take(&mut self.held_back) {
                    self.push(self.now, event);
                }
            }
            Fault::DatabaseDown => self.is_database_up = true,
            Fault::Cordon { server } => _ = self.cordoned.remove(&server),
        }
    }
}

impl Event {
    /// The server that has to handle it.
    fn server(&self) -> Option<usize> {
        match self {
            Self::Tick { server, .. }
            | Self::Create { server, .. }
            | Self::CreateOn { server, .. }
            | Self::Ask { server, .. } => Some(*server),
            Self::ToServer(send, _) => Some(send.from),
            Self::ToDatabase(_) | Self::Kill { .. } | Self::Break(_) | Self::Repair(_) => None,
        }
    }
}
