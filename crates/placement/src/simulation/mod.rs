//! A cluster in virtual time: servers with clocks of their own, a database, messages that are late or lost, and crashes, all
//! from one seed. After every step it checks what must always hold. Nothing sleeps, and the same seed always gives the
//! same run, so a seed that fails prints a trace that can be read and repeated.
//!
//! The servers and the database use the rules of this crate. What is simulated around them is what other crates do: the
//! rows of sandboxes, the machines, and the order of steps of a create.

mod check;
mod database;
mod faults;
mod random;
mod server;
mod world;

use world::{Outcome, World};

/// A mistake that is built in, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The database renews a lease that has run out, without a new epoch.
    RenewsAfterLoss,
    /// The database takes writes of any epoch.
    TakesAnyEpoch,
    /// A lease counts from the answer of the database.
    CountsFromAnswer,
    /// A server that returns leaves what was given up.
    SettlesWithoutRemoving,
    /// A server is given up as soon as its lease has run out.
    HasNoGrace,
    /// A server passes traffic on for ever.
    ServesForEver,
    /// A server that was given up doesn't notice the gap in its epochs.
    IgnoresGap,
}

/// How many schedules run in CI, in as many parts as tests below.
const SCHEDULES: u64 = 10_000;
const PARTS: u64 = 4;

fn run(seed: u64, mutant: Mutant) -> Outcome {
    World::new(seed, mutant, false).run()
}

/// Runs a seed again and returns its trace.
fn trace(seed: u64, mutant: Mutant) -> String {
    World::new(seed, mutant, true).run().trace.join("\n")
}

/// The sum of what happened in the schedules of one part.
fn all_schedules_hold(part: u64) -> Outcome {
    let mut sum = Outcome::default();
    for seed in (0..SCHEDULES).filter(|seed| seed % PARTS == part) {
        let outcome = run(seed, Mutant::None);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\n{}", trace(seed, Mutant::None));
        }
        sum.add(&outcome);
    }
    sum
}

/// Schedules in which nothing happens would prove nothing.
fn assert_eventful(sum: &Outcome) {
    let schedules = u32::try_from(SCHEDULES / PARTS).unwrap();
    assert!(sum.acknowledged > schedules * 5, "{sum:?}");
    assert!(sum.given_up > schedules / 4, "{sum:?}");
    assert!(sum.removed_on_return > schedules / 20, "{sum:?}");
    assert!(sum.refused_writes > schedules / 20, "{sum:?}");
    assert!(sum.sessions_replaced > schedules / 20, "{sum:?}");
}

#[test]
fn schedules_hold_part_1() {
    assert_eventful(&all_schedules_hold(0));
}

#[test]
fn schedules_hold_part_2() {
    assert_eventful(&all_schedules_hold(1));
}

#[test]
fn schedules_hold_part_3() {
    assert_eventful(&all_schedules_hold(2));
}

#[test]
fn schedules_hold_part_4() {
    assert_eventful(&all_schedules_hold(3));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let first = trace(7, Mutant::None);
    assert_eq!(first, trace(7, Mutant::None));
    assert!(first.lines().count() > 50, "{first}");
    assert_ne!(first, trace(8, Mutant::None));
}

/// Each of them is found, by the check that is meant for it.
#[test]
fn built_in_mistakes_are_found() {
    let expected = [
        (Mutant::RenewsAfterLoss, "was given up and is still on"),
        (Mutant::TakesAnyEpoch, "wrote without a lease"),
        (Mutant::CountsFromAnswer, "believes in a lease"),
        (Mutant::SettlesWithoutRemoving, "was given up and is still on"),
        (Mutant::HasNoGrace, "was given up too early"),
        (Mutant::ServesForEver, "has two sandboxes"),
        (Mutant::IgnoresGap, "has two sandboxes"),
    ];
    for (mutant, words) in expected {
        let found = (0..SCHEDULES).find_map(|seed| run(seed, mutant).violation.filter(|found| found.contains(words)));
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}
