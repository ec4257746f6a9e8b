//! The methods of the two RPC services, by their paths.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::guest::Guest;
use crate::http::Reply;
use crate::rpc::{client_stream, server_stream, unary};
use crate::settings::Settings;
use crate::{fs, process};

/// Answers a call. `None` if the path names no method.
pub(super) async fn call(guest: &Guest, settings: &Arc<Settings>, request: Request<Incoming>) -> Option<Reply> {
    let path = request.uri().path().to_owned();
    if let Some(method) = path.strip_prefix("/process.Process/") {
        return call_process(guest, settings, method, request).await;
    }
    call_filesystem(guest, settings, path.strip_prefix("/filesystem.Filesystem/")?, request).await
}

async fn call_process(
    guest: &Guest,
    settings: &Arc<Settings>,
    method: &str,
    request: Request<Incoming>,
) -> Option<Reply> {
    let processes = &guest.processes;
    Some(match method {
        "List" => unary(settings, request, |_, message| process::list(processes, message)).await,
        "Start" => server_stream(settings, request, |call, message| process::start(processes, call, message)).await,
        "Connect" => server_stream(settings, request, |call, message| process::connect(processes, call, message)).await,
        "SendInput" => unary(settings, request, |_, message| process::send_input(processes, message)).await,
        "StreamInput" => {
            client_stream(settings, request, |_, messages| process::stream_input(processes, messages)).await
        }
        "CloseStdin" => unary(settings, request, |_, message| process::close_stdin(processes, message)).await,
        "SendSignal" => unary(settings, request, |_, message| process::send_signal(processes, message)).await,
        "Update" => unary(settings, request, |_, message| process::update(processes, message)).await,
        _ => return None,
    })
}

async fn call_filesystem(
    guest: &Guest,
    settings: &Arc<Settings>,
    method: &str,
    request: Request<Incoming>,
) -> Option<Reply> {
    let watchers = &guest.watchers;
    Some(match method {
        "Stat" => unary(settings, request, fs::stat).await,
        "ListDir" => unary(settings, request, fs::list_dir).await,
        "MakeDir" => unary(settings, request, fs::make_dir).await,
        "Move" => unary(settings, request, fs::move_entry).await,
        "Remove" => unary(settings, request, fs::remove).await,
        "WatchDir" => server_stream(settings, request, fs::watch_dir).await,
        "CreateWatcher" => unary(settings, request, |call, message| fs::create_watcher(watchers, call, message)).await,
        "GetWatcherEvents" => unary(settings, request, |_, message| fs::get_watcher_events(watchers, message)).await,
        "RemoveWatcher" => unary(settings, request, |_, message| fs::remove_watcher(watchers, message)).await,
        _ => return None,
    })
}
