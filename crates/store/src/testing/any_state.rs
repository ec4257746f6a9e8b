//! A strategy for property tests.

use isopod_wire::node::PauseMode;
use proptest::prelude::*;

use crate::{Ending, State};

/// Any state that a sandbox can be in.
pub fn any_state() -> impl Strategy<Value = State> {
    let mode = || prop_oneof![Just(PauseMode::Memory), Just(PauseMode::Filesystem)];
    let ending = || proptest::sample::select(Ending::ALL.to_vec());
    prop_oneof![
        Just(State::Creating),
        Just(State::Running),
        mode().prop_map(State::Pausing),
        mode().prop_map(State::Paused),
        mode().prop_map(State::Resuming),
        ending().prop_map(State::Ending),
        ending().prop_map(State::Ended),
    ]
}
