//! The short calls about processes: `List`, `SendSignal`, `CloseStdin` and `Update`.

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, ListRequest, ListResponse, ProcessInfo, SendSignalRequest,
    SendSignalResponse, Signal as WireSignal, UpdateRequest, UpdateResponse,
};
use rustix::process::Signal;

use crate::process::start::window_size;
use crate::rpc::{Call, Code, RpcError};

/// The processes that run now.
pub(crate) async fn list(call: Call, _request: ListRequest) -> Result<ListResponse, RpcError> {
    let live = call.guest.processes.all_live();
    let processes = live.iter().map(|process| ProcessInfo {
        config: MessageField::some(process.config.clone()),
        pid: process.pid_number(),
        tag: process.tag.clone(),
    });
    Ok(ListResponse { processes: processes.collect() })
}

/// Signals a process and its group: what a shell started for the command goes with it.
pub(crate) async fn send_signal(call: Call, request: SendSignalRequest) -> Result<SendSignalResponse, RpcError> {
    let process = call.guest.processes.live(&request.process)?;
    let signal = match request.signal.as_known() {
        Some(WireSignal::SIGNAL_SIGKILL) => Signal::KILL,
        Some(WireSignal::SIGNAL_SIGTERM) => Signal::TERM,
        Some(WireSignal::SIGNAL_UNSPECIFIED) | None => {
            return Err(RpcError::new(Code::Unimplemented, "invalid signal: only SIGTERM and SIGKILL can be sent"));
        }
    };
    process.signal(signal).map_err(|error| RpcError::new(Code::Internal, format!("error sending signal: {error}")))?;
    Ok(SendSignalResponse {})
}

/// Lets the process read the end of its input.
pub(crate) async fn close_stdin(call: Call, request: CloseStdinRequest) -> Result<CloseStdinResponse, RpcError> {
    call.guest.processes.live(&request.process)?.input.close().await?;
    Ok(CloseStdinResponse {})
}

/// Resizes a terminal.
pub(crate) async fn update(call: Call, request: UpdateRequest) -> Result<UpdateResponse, RpcError> {
    let process = call.guest.processes.live(&request.process)?;
    if let Some(pty) = request.pty.as_option() {
        process.input.resize(window_size(pty))?;
    }
    Ok(UpdateResponse {})
}
