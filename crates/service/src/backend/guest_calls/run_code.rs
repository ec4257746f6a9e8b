//! Runs code in the interpreter of a sandbox.

use isopod_guest_client::interpreter::{Executed, RunCode};
use isopod_guest_client::{Interpreter, Reservation};

use super::super::BackendError;
use super::{Phase, of_guest};

/// The limit on memory for the output and the results of one run.
const MAX_RESULT_BYTES: usize = 64 << 20;

pub(in super::super) async fn run_code(
    interpreter: &Interpreter,
    code: RunCode,
    memory: &mut Reservation,
) -> Result<Executed, BackendError> {
    let running = interpreter.run(code).await.map_err(|error| of_guest(error, Phase::Streaming))?;
    running.collect_within(MAX_RESULT_BYTES, memory).await.map_err(|error| of_guest(error, Phase::Streaming))
}
