//! Forwards one request into a sandbox and returns its response.

use std::sync::Arc;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use isopod_api::{ApiError, Peer, Upload};
use isopod_store::secrets::same;
use isopod_store::{Resource, StoreError};
use isopod_wire::node::{DialError, Target};
use isopod_wire::{GUEST_PORT, INTERPRETER_PORT, SandboxId};
use percent_encoding::percent_decode_str;
use tokio::sync::OwnedSemaphorePermit;

use super::break_off::Client;
use super::credentials::{strip_access_token, strip_credentials};
use super::gate::{GatedBody, Stops};
use super::headers::{
    force_download, restrict_response, set_forwarded, strip_hop_by_hop, strip_proxy_headers, wanted_upgrade,
};
use super::refusal::{Refusal, ServerName, TRAFFIC_HEADER};
use super::route::{Address, Form, by_headers};
use super::{Edge, tunnel};
use crate::delivery::{ClientConnection, RunningGuest, TrackedBody};
use crate::lifecycle::{ActError, Fleet, Life, Sandbox, View};
use crate::upstream::{ConnectError, connect};

/// Paths of the guest that are for the node, not for clients.
const INTERNAL_PATHS: [&str; 9] =
    ["init", "logs", "delivery", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade"];
const ACCESS_HEADER: &str = "x-access-token";

/// Forwards the request. A refusal becomes a response that the SDKs understand.
pub(crate) async fn proxy(edge: &Edge, address: Address, peer: Peer, mut request: Request<Body>) -> Response<Body> {
    let asked_with = request.headers().clone();
    let upload = Upload::of(&mut request);
    match try_proxy(edge, address, peer, request).await {
        Ok(response) => response,
        Err(refusal) => {
            upload.into_iter().for_each(Upload::drain);
            refusal.response(&asked_with)
        }
    }
}

/// Forwards a request of this process, which names its sandbox by headers.
pub(crate) async fn proxy_from_inside(edge: &Edge, request: Request<Body>) -> Response<Body> {
    let peer = request.extensions().get().copied();
    match (by_headers(request.headers()), peer) {
        (Some(Ok(address)), Some(peer)) => proxy(edge, address, peer, request).await,
        (Some(Err(refusal)), _) => refusal.response(request.headers()),
        _ => ApiError::bad_request("the request names no sandbox").into_response(),
    }
}

/// The sandbox does not exist, or is on another server that shares the database.
async fn not_found(fleet: &Fleet, sandbox: SandboxId) -> Refusal {
    match fleet.store.check_here(Resource::Sandbox(&sandbox, None)).await {
        Err(StoreError::Elsewhere { id, server }) => Refusal::Elsewhere(sandbox, ServerName { id, name: server }),
        Err(StoreError::Unreachable { server }) => Refusal::ServerUnreachable(sandbox, server),
        _ => Refusal::NotFound(sandbox),
    }
}

async fn try_proxy(
    edge: &Edge,
    address: Address,
    peer: Peer,
    mut request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    let fleet = &*edge.fleet;
    let Some(sandbox) = fleet.find(&address.sandbox) else { return Err(not_found(fleet, address.sandbox).await) };
    if let Form::Path(path) = &address.form {
        rewrite_path(&mut request, path)?;
    }
    let view = sandbox.view();
    check_access(&view, &address, &request)?;
    let life = running_life(&sandbox, view).await?;
    life.output.expect();
    let client = request.extensions_mut().remove();
    let permit = life.upstreams.permit().ok_or_else(|| Refusal::TooManyConnections(address.sandbox.clone()))?;
    prepare(edge, &sandbox, &address, peer, &mut request).await;
    let sent = send(fleet, &address, &life, permit, client, request);
    let mut response = tokio::select! {
        biased;
        response = sent => response.map_err(|refusal| of_ended(refusal, &life))?,
        () = life.gate.cancelled() => return Err(Refusal::NotFound(address.sandbox)),
    };
    if address.form.shares_the_apis_origin() {
        restrict_response(response.headers_mut());
    }
    if address.form == Form::Signature {
        force_download(response.headers_mut());
    }
    Ok(response)
}

/// The connection into a sandbox breaks when it ends, and that may be noticed first.
fn of_ended(refusal: Refusal, life: &Life) -> Refusal {
    match refusal {
        Refusal::Unreachable(sandbox) if life.ended.is_cancelled() => Refusal::NotFound(sandbox),
        refusal => refusal,
    }
}

/// Internal paths do not exist for clients. Ports other than the guest's require the traffic token if the sandbox is
/// not public.
fn check_access(view: &View, address: &Address, request: &Request<Body>) -> Result<(), Refusal> {
    if address.port == GUEST_PORT {
        return if is_internal(request.uri().path()) { Err(Refusal::InternalPath) } else { Ok(()) };
    }
    let is_private = view.row.network.allow_public_traffic == Some(false);
    let needs_token = is_private || address.port == INTERPRETER_PORT && needs_context_token(view, request);
    if !needs_token {
        return Ok(());
    }
    // `None` if the sandbox is not secured, or was created by an older server.
    let Some(token) = &view.row.traffic_token else { return Ok(()) };
    match request.headers().get(TRAFFIC_HEADER) {
        None => Err(Refusal::TokenMissing(address.sandbox.clone())),
        Some(given) if same(given.as_bytes(), token.0.as_bytes()) => Ok(()),
        Some(_) => Err(Refusal::TokenInvalid(address.sandbox.clone())),
    }
}

/// Contexts hold the state of the owner's code. SDKs send the traffic token with these calls if they have one, and
/// older ones send the access token. A browser's preflight request has neither, and touches no context.
fn needs_context_token(view: &View, request: &Request<Body>) -> bool {
    let shown = request.headers().get(ACCESS_HEADER);
    let is_owner = match (&view.row.access_token, shown) {
        (Some(token), Some(shown)) => same(shown.as_bytes(), token.0.as_bytes()),
        _ => false,
    };
    !is_owner && request.method() != Method::OPTIONS && is_below(request.uri().path(), &["contexts"])
}

fn is_internal(path: &str) -> bool {
    is_below(path, &INTERNAL_PATHS)
}

/// Whether the path begins with one of these names. All spellings that a router inside may normalize count as the same
/// path.
fn is_below(path: &str, names: &[&str]) -> bool {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    segments.first().is_some_and(|first| names.iter().any(|name| first.eq_ignore_ascii_case(name)))
}

/// Returns the sandbox's current life. Resumes a paused sandbox if it has auto-resume.
async fn running_life(sandbox: &Sandbox, view: Arc<View>) -> Result<Arc<Life>, Refusal> {
    if let Some(life) = &view.life {
        return Ok(Arc::clone(life));
    }
    let id = sandbox.id().clone();
    if view.row.state.shown().is_none() {
        return Err(Refusal::NotFound(id));
    }
    match sandbox.wake().await {
        Ok(()) => sandbox.view().life.clone().ok_or(Refusal::NotFound(id)),
        Err(ActError::TeamLimit(why)) => Err(Refusal::TeamLimit(id, why.to_string())),
        Err(ActError::Draining(why)) => Err(Refusal::Draining(id, why)),
        Err(ActError::Feature(why)) => Err(Refusal::Feature(id, why)),
        Err(ActError::Refused(_)) => Err(Refusal::NotFound(id)),
        Err(error) => {
            tracing::warn!(sandbox = %id, error = isopod_wire::error_chain(&error), "could not resume a sandbox for a request");
            Err(Refusal::Unreachable(id))
        }
    }
}

fn rewrite_path(request: &mut Request<Body>, path: &str) -> Result<(), Refusal> {
    let text = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    *request.uri_mut() = text.parse().map_err(|_| Refusal::InvalidHost)?;
    Ok(())
}

/// Rewrites the request's head to what the service inside should see.
async fn prepare(edge: &Edge, sandbox: &Sandbox, address: &Address, peer: Peer, request: &mut Request<Body>) {
    let authority = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    // Only the path: a service inside is an origin, not a proxy.
    let uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    let upgrade = wanted_upgrade(request.headers());
    let headers = request.headers_mut();
    let host = headers.get(header::HOST).cloned().or(authority);
    strip_hop_by_hop(headers);
    strip_proxy_headers(headers);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if address.form.shares_the_apis_origin() {
        headers.remove(header::COOKIE);
    }
    strip_credentials(edge, headers).await;
    if let Target::Port(_) = target_of(address.port) {
        strip_access_token(&sandbox.view(), headers);
    }
    set_forwarded(headers, peer, host.clone());
    let shown = masked_host(sandbox, address.port).or(host);
    headers.insert(header::HOST, shown.unwrap_or_else(|| HeaderValue::from_static("localhost")));
}

fn masked_host(sandbox: &Sandbox, port: u16) -> Option<HeaderValue> {
    let view = sandbox.view();
    let mask = view.row.network.mask_request_host.as_ref().filter(|_| port != GUEST_PORT)?;
    HeaderValue::from_str(&mask.replace("${PORT}", &port.to_string())).ok()
}

async fn send(
    fleet: &Fleet,
    address: &Address,
    life: &Arc<Life>,
    permit: OwnedSemaphorePermit,
    client: Option<ClientConnection>,
    mut request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    let upgrade = request.headers().contains_key(header::UPGRADE).then(|| tunnel::client_half(&mut request));
    let receiver = client.as_ref().map(|client| Client::of(client, request.headers()));
    let mut tracking = None;
    let mut response = match target_of(address.port) {
        Target::Guest if upgrade.is_none() => {
            let guest = RunningGuest { node: fleet.node.as_ref(), incarnation: &life.incarnation, gate: &life.gate };
            let tracked = life.deliveries.track(guest, &mut request, client).await;
            tracking = tracked.map_err(|error| unreachable(address, &error))?;
            send_reused(fleet, address, life, request).await?
        }
        target => send_fresh(fleet, address, life, target, request).await?,
    };
    if let (StatusCode::SWITCHING_PROTOCOLS, Some(client)) = (response.status(), upgrade) {
        tunnel::join(client, &mut response, life.gate.clone(), permit);
        return Ok(response.map(|_| Body::empty()));
    }
    strip_hop_by_hop(response.headers_mut());
    let delivery = tracking.and_then(|tracking| life.deliveries.begin(tracking, response.headers_mut()));
    let (head, body) = response.into_parts();
    // Below the gate, because the guest does not know about the frame that the gate adds, so that frame must not count.
    let body = TrackedBody::new(body, delivery);
    let stops = Stops { closed: life.gate.clone(), gone: life.ended.clone(), leaving: fleet.streams_end.clone() };
    let body = GatedBody::new(body, &head.headers, receiver, stops, permit);
    Ok(Response::from_parts(head, Body::new(body)))
}

fn target_of(port: u16) -> Target {
    match port {
        GUEST_PORT => Target::Guest,
        INTERPRETER_PORT => Target::Interpreter,
        other => Target::Port(other),
    }
}

/// Sends over a kept-alive connection if there is one. If that connection closes before it took the request, the
/// request is sent again. The same happens if it closes without a response and the request is idempotent.
async fn send_reused(
    fleet: &Fleet,
    address: &Address,
    life: &Arc<Life>,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Refusal> {
    let mut may_use_kept = true;
    loop {
        let kept = if may_use_kept { life.upstreams.take_idle() } else { None };
        let is_kept = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => open(fleet, address, life, Target::Guest).await?,
        };
        let again = if is_kept { copy_if_repeatable(&request) } else { None };
        match sender.try_send_request(request).await {
            Ok(response) => {
                let life = Arc::clone(life);
                tokio::spawn(async move {
                    if sender.ready().await.is_ok() {
                        life.upstreams.keep(sender);
                    }
                });
                return Ok(response);
            }
            Err(mut error) => match (error.take_message(), again) {
                (Some(unsent), _) if is_kept => request = unsent,
                (None, Some(again)) if error.error().is_incomplete_message() => {
                    (request, may_use_kept) = (again, false)
                }
                _ => return Err(unreachable(address, error.error())),
            },
        }
    }
}

/// Returns a copy of the request if it can be sent twice without harm.
fn copy_if_repeatable(request: &Request<Body>) -> Option<Request<Body>> {
    if !request.method().is_idempotent() || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Body::empty());
    (*copy.method_mut(), *copy.uri_mut()) = (request.method().clone(), request.uri().clone());
    (*copy.version_mut(), *copy.headers_mut()) = (request.version(), request.headers().clone());
    // The extensions preserve the spelling of the client's header names.
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

async fn send_fresh(
    fleet: &Fleet,
    address: &Address,
    life: &Arc<Life>,
    target: Target,
    request: Request<Body>,
) -> Result<Response<Incoming>, Refusal> {
    let mut sender = open(fleet, address, life, target).await?;
    sender.send_request(request).await.map_err(|error| unreachable(address, &error))
}

async fn open(
    fleet: &Fleet,
    address: &Address,
    life: &Life,
    target: Target,
) -> Result<hyper::client::conn::http1::SendRequest<Body>, Refusal> {
    connect(fleet.node.as_ref(), &life.incarnation, target, &life.gate).await.map_err(|error| match error {
        ConnectError::Dial(DialError::NotFound(_) | DialError::Paused(_)) => Refusal::NotFound(address.sandbox.clone()),
        ConnectError::Dial(DialError::Refused { .. }) if target == Target::Interpreter => {
            Refusal::NoInterpreter(address.sandbox.clone())
        }
        ConnectError::Dial(DialError::Refused { .. }) => Refusal::PortClosed(address.sandbox.clone(), address.port),
        error => unreachable(address, &error),
    })
}

fn unreachable(address: &Address, error: &(dyn std::error::Error + 'static)) -> Refusal {
    tracing::debug!(sandbox = %address.sandbox, port = address.port, error = isopod_wire::error_chain(error), "could not reach a sandbox");
    Refusal::Unreachable(address.sandbox.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_paths_are_recognised_in_every_spelling() {
        for path in
            ["/init", "/init/", "//init", "/./init", "/x/../init", "/%69nit", "/INIT", "/%2finit", "/freeze?x", "/logs"]
        {
            assert!(is_internal(path.split('?').next().unwrap()), "{path}");
        }
        for path in ["/", "/health", "/files", "/initial", "/x/init", "/process.Process/Start"] {
            assert!(!is_internal(path), "{path}");
        }
    }
}
