//! The rules for what is allowed when. Pure functions from a state and a request to the step to take or a refusal.

use isopod_store::{Ending, State};
use isopod_wire::node::PauseMode;

/// A request about a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Connect to it, and resume it if it is paused. `memory: false` requests a start from disk.
    Connect { memory: bool },
    /// Set the timeout, to an earlier or later time.
    SetTimeout,
    /// Extend the timeout.
    Extend,
    /// Pause it.
    Pause(PauseMode),
    /// Replace its network policy.
    SetNetwork,
    /// Take a snapshot of it, to keep or for copies.
    Snapshot,
    /// Put it back to a snapshot of it.
    Rollback,
    /// Resume it because traffic has arrived.
    Wake { auto_resume: bool },
    /// The timeout has expired.
    Expire { auto_pause: Option<PauseMode> },
    /// Remove it.
    End(Ending),
}

/// The step to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing has to be done.
    Nothing,
    /// Move the deadline, but never to an earlier time.
    Extend,
    /// Move the deadline.
    SetTimeout,
    /// Ask the node to resume it.
    Resume(PauseMode),
    /// Ask the node to discard its memory and to start it from its files.
    Restart,
    /// Ask the node to pause it.
    Pause(PauseMode),
    /// Pass the new policy to the node.
    SetNetwork,
    /// Ask the node to take a snapshot.
    Snapshot,
    /// Ask the node to replace its life.
    Rollback,
    /// Ask the node to remove it.
    End(Ending),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is gone or ending.
    #[error("the sandbox was not found")]
    NotFound,
    #[error("the sandbox is already paused")]
    AlreadyPaused,
    /// The request needs a running sandbox.
    #[error("the sandbox is paused; connect to it first")]
    Paused,
    /// It is changing from one state to another.
    #[error("the sandbox is changing its state; try again")]
    Busy,
    /// Its memory was not kept, so only its owner may start it.
    #[error("only an explicit connect or resume can start this paused sandbox")]
    NeedsConnect,
}

/// Decides what to do for a request in a state.
pub(crate) fn decide(state: State, request: Request) -> Result<Step, Refusal> {
    match (state, request) {
        (State::Ended(_), _) => Err(Refusal::NotFound),
        // The first reason stays. A repeated request only ensures that it is done.
        (State::Ending(reason), Request::End(_)) => Ok(Step::End(reason)),
        (State::Ending(_), _) => Err(Refusal::NotFound),
        (_, Request::End(reason)) => Ok(Step::End(reason)),
        (State::Running, request) => while_running(request),
        (State::Paused(mode), request) => while_paused(mode, request),
        (State::Creating | State::Pausing(_) | State::Resuming(_), _) => Err(Refusal::Busy),
    }
}

fn while_running(request: Request) -> Result<Step, Refusal> {
    Ok(match request {
        Request::Connect { .. } | Request::Extend => Step::Extend,
        Request::SetTimeout => Step::SetTimeout,
        Request::Pause(mode) => Step::Pause(mode),
        Request::SetNetwork => Step::SetNetwork,
        Request::Snapshot => Step::Snapshot,
        Request::Rollback => Step::Rollback,
        Request::Wake { .. } => Step::Nothing,
        Request::Expire { auto_pause: Some(mode) } => Step::Pause(mode),
        Request::Expire { auto_pause: None } => Step::End(Ending::Timeout),
        Request::End(reason) => Step::End(reason),
    })
}

fn while_paused(mode: PauseMode, request: Request) -> Result<Step, Refusal> {
    match (request, mode) {
        (Request::Connect { memory: false }, PauseMode::Memory) => Ok(Step::Restart),
        (Request::Connect { .. }, _) => Ok(Step::Resume(mode)),
        (Request::Wake { auto_resume: true }, PauseMode::Memory) => Ok(Step::Resume(mode)),
        (Request::Wake { auto_resume: true }, PauseMode::Filesystem) => Err(Refusal::NeedsConnect),
        (Request::Wake { auto_resume: false }, _) => Err(Refusal::NeedsConnect),
        (Request::Pause(_), _) => Err(Refusal::AlreadyPaused),
        (Request::SetTimeout | Request::Extend | Request::SetNetwork, _) => Err(Refusal::Paused),
        (Request::Snapshot | Request::Rollback, _) => Err(Refusal::Paused),
        // Paused sandboxes are kept until a request removes them.
        (Request::Expire { .. }, _) => Ok(Step::Nothing),
        (Request::End(reason), _) => Ok(Step::End(reason)),
    }
}

#[cfg(test)]
mod tests {
    use isopod_store::testing::any_state;
    use proptest::prelude::*;

    use super::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let mode = || prop_oneof![Just(PauseMode::Memory), Just(PauseMode::Filesystem)];
        prop_oneof![
            any::<bool>().prop_map(|memory| Request::Connect { memory }),
            Just(Request::SetTimeout),
            Just(Request::Extend),
            mode().prop_map(Request::Pause),
            Just(Request::SetNetwork),
            Just(Request::Snapshot),
            Just(Request::Rollback),
            any::<bool>().prop_map(|auto_resume| Request::Wake { auto_resume }),
            proptest::option::of(mode()).prop_map(|auto_pause| Request::Expire { auto_pause }),
            Just(Request::End(Ending::Killed)),
            Just(Request::End(Ending::GuestDied)),
        ]
    }

    proptest! {
        #[test]
        fn nothing_brings_an_ended_sandbox_back(state in any_state(), request in any_request()) {
            if let State::Ended(_) = state {
                prop_assert_eq!(decide(state, request), Err(Refusal::NotFound));
            }
            if let State::Ending(_) = state {
                prop_assert!(matches!(decide(state, request), Err(Refusal::NotFound) | Ok(Step::End(_))));
            }
        }

        #[test]
        fn every_live_sandbox_can_be_ended(state in any_state()) {
            let ended = matches!(state, State::Ended(_));
            prop_assert_eq!(decide(state, Request::End(Ending::Killed)).is_ok(), !ended);
        }

        #[test]
        fn only_a_paused_sandbox_is_resumed_and_only_a_running_one_paused(state in any_state(), request in any_request()) {
            match decide(state, request) {
                Ok(Step::Resume(mode)) => prop_assert_eq!(state, State::Paused(mode)),
                Ok(Step::Restart) => {
                    prop_assert_eq!(state, State::Paused(PauseMode::Memory));
                    prop_assert_eq!(request, Request::Connect { memory: false });
                }
                Ok(Step::Pause(_) | Step::SetTimeout | Step::Extend | Step::SetNetwork) => {
                    prop_assert_eq!(state, State::Running)
                }
                Ok(Step::Snapshot | Step::Rollback) => {
                    prop_assert!(matches!(request, Request::Snapshot | Request::Rollback));
                    prop_assert_eq!(state, State::Running)
                }
                _ => {}
            }
        }

        #[test]
        fn only_a_running_sandbox_is_copied_or_put_back(state in any_state()) {
            for request in [Request::Snapshot, Request::Rollback] {
                match (state, decide(state, request)) {
                    (State::Running, decided) => prop_assert!(decided.is_ok()),
                    (State::Paused(_), decided) => prop_assert_eq!(decided, Err(Refusal::Paused)),
                    (State::Ending(_) | State::Ended(_), decided) => prop_assert_eq!(decided, Err(Refusal::NotFound)),
                    (_, decided) => prop_assert_eq!(decided, Err(Refusal::Busy)),
                }
            }
        }

        #[test]
        fn traffic_wakes_only_what_asked_for_it_and_kept_its_memory(state in any_state(), auto_resume: bool) {
            let woken = matches!(decide(state, Request::Wake { auto_resume }), Ok(Step::Resume(_)));
            prop_assert_eq!(woken, auto_resume && state == State::Paused(PauseMode::Memory));
        }
    }
}
