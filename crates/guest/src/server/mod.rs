//! The routes of the guest's own socket, and which of them need the token.

mod methods;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use isopod_wire::delivery;
use tokio::net::UnixListener;

use crate::guest::Guest;
use crate::http::{
    HostConnection, HttpError, Query, Reply, authorize, check_host, drain, json_reply, read_json, serve, status_reply,
    with_cors,
};
use crate::settings::InitRequest;
use crate::{checkpoint, files, interpreter, process, rpc};

/// Accepts connections forever.
pub(crate) async fn accept(listener: UnixListener, guest: Arc<Guest>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let guest = Arc::clone(&guest);
                let connection = HostConnection::new(stream);
                let attached = connection.attached();
                tokio::spawn(serve(connection, move |mut request| {
                    let guest = Arc::clone(&guest);
                    request.extensions_mut().insert(attached.clone());
                    async move { answer(&guest, request).await }
                }));
            }
            // Out of descriptors or memory. Retry once other connections have released some.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn answer(guest: &Arc<Guest>, request: Request<Incoming>) -> Reply {
    with_cors(request, async |request| route(guest, request).await.unwrap_or_else(HttpError::into_reply)).await
}

async fn route(guest: &Arc<Guest>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    match (&method, path.as_str()) {
        (&Method::GET | &Method::HEAD, "/health") => return Ok(status_reply(StatusCode::NO_CONTENT)),
        (&Method::POST, "/init") => return init(guest, request).await,
        (&Method::GET, "/logs") => return logs(guest, &request),
        (&Method::POST, delivery::PATH) => return process::open_channel(&guest.processes, request),
        _ if checkpoint::has_route(&path) => return checkpoint::answer(&guest.checkpoint, request).await,
        (&Method::GET, "/interpreter") => return interpreter::status(guest.interpreter.as_deref(), &request),
        (&Method::POST, "/interpreter") => return interpreter::prepare(guest.interpreter.as_ref(), &request),
        _ => {}
    }
    let settings = guest.settings.get().ok_or_else(|| {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox is not set up yet, try again in a moment")
    })?;
    // Signed URLs give access to files without a token, so these handlers check credentials themselves.
    match (&method, path.as_str()) {
        (&Method::GET | &Method::HEAD, "/files") => return files::download(&settings, request).await,
        (&Method::POST, "/files") => return files::upload(&settings, request).await,
        _ => {
            if let Err(refused) = authorize(&settings, &request) {
                drain(request.into_body()).await;
                return Err(refused);
            }
        }
    }
    match (&method, path.as_str()) {
        (&Method::POST, "/files/compose") => files::compose(&settings, request).await,
        (&Method::GET, "/files/tree") => files::tree(&settings, request).await,
        (&Method::GET, "/envs") => Ok(json_reply(&settings.env)),
        (&Method::GET, "/metrics") => Ok(json_reply(&guest.meters.read())),
        _ => match methods::call(guest, &settings, request).await {
            Some(reply) => Ok(reply),
            None if method == Method::POST && path.matches('/').count() == 2 => Ok(rpc::unknown_method(&path)),
            None => Err(HttpError::new(StatusCode::NOT_FOUND, format!("{path} not found"))),
        },
    }
}

async fn init(guest: &Guest, request: Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(&request)?;
    let request: InitRequest = read_json(request).await?;
    if let Some(hostname) = &request.hostname
        && rustix::process::getpid().is_init()
    {
        // The host name is cosmetic, and not every sandbox may set it.
        let _ = rustix::system::sethostname(hostname.as_bytes());
    }
    guest.settings.set(request.into());
    Ok(status_reply(StatusCode::NO_CONTENT))
}

/// Returns what processes printed after the position up to which the host has read.
fn logs(guest: &Guest, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(request)?;
    let query = Query::parse(request.uri().query());
    let after = query.get("after").unwrap_or("0").parse();
    let after = after.map_err(|_| HttpError::new(StatusCode::BAD_REQUEST, "after must be a number"))?;
    Ok(json_reply(&guest.logs.page(after)))
}
