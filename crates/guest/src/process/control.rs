//! The simple calls: `List`, `SendSignal`, `CloseStdin` and `Update`.

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, ListRequest, ListResponse, ProcessInfo, SendSignalRequest,
    SendSignalResponse, Signal as WireSignal, UpdateRequest, UpdateResponse,
};
use rustix::process::Signal;

use crate::process::Processes;
use crate::process::terminal::window_size;
use crate::rpc::{Code, RpcError};

/// Lists the live processes.
pub(crate) async fn list(processes: &Processes, _request: ListRequest) -> Result<ListResponse, RpcError> {
    let live = processes.all_live();
    let processes = live.iter().map(|process| ProcessInfo {
        config: MessageField::some(process.config.clone()),
        pid: process.pid_number(),
        tag: process.tag.clone(),
    });
    Ok(ListResponse { processes: processes.collect() })
}

/// Signals a process and its group, so that the children of a shell get the signal too. When the reply to a kill is sent, they
/// are gone.
pub(crate) async fn send_signal(
    processes: &Processes,
    request: SendSignalRequest,
) -> Result<SendSignalResponse, RpcError> {
    let process = processes.live(&request.process)?;
    // Not held while a killed process disappears.
    drop(processes.gate.pass().await);
    let sent = match request.signal.as_known() {
        Some(WireSignal::SIGNAL_SIGKILL) => process.kill().await,
        Some(WireSignal::SIGNAL_SIGTERM) => process.signal(Signal::TERM),
        Some(WireSignal::SIGNAL_UNSPECIFIED) | None => {
            return Err(RpcError::new(Code::Unimplemented, "invalid signal: only SIGTERM and SIGKILL can be sent"));
        }
    };
    sent.map_err(|error| RpcError::new(Code::Internal, format!("error sending signal: {error}")))?;
    Ok(SendSignalResponse {})
}

/// Closes standard input: the process reads its end.
pub(crate) async fn close_stdin(
    processes: &Processes,
    request: CloseStdinRequest,
) -> Result<CloseStdinResponse, RpcError> {
    processes.live(&request.process)?.input.close(&processes.gate).await?;
    Ok(CloseStdinResponse {})
}

/// Resizes a terminal.
pub(crate) async fn update(processes: &Processes, request: UpdateRequest) -> Result<UpdateResponse, RpcError> {
    let process = processes.live(&request.process)?;
    let _pass = processes.gate.pass().await;
    if let Some(pty) = request.pty.as_option() {
        process.input.resize(window_size(pty))?;
    }
    Ok(UpdateResponse {})
}
