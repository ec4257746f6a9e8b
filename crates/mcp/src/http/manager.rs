//! Joins the protocol's sessions to ours, for one request: a session that the request opens or restores gets into the
//! registry with its streams, and one that ends leaves it.
//!
//! Ids of events in the stream of a request name the request, too: `17.STREAM~REQUEST`. If the server restarted meanwhile,
//! a client that asks for the rest of the stream gets an error as the response, rather than silence.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::{Stream, StreamExt as _, stream};
use rmcp::model::{ClientJsonRpcMessage, ErrorData, InitializeRequestParams, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{
    EventStore, RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionState, SessionStore,
    SessionStoreError,
};

use super::events::Messages;
use super::registry::Registry;
use super::session::Session;

/// What a request is about.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    session: Arc<Session>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A session that is in the registry.
    Known,
    /// The request opens it.
    New,
    /// A session of an earlier server, and what its client said of itself.
    Restored(Box<InitializeRequestParams>),
    /// The protocol has no sessions.
    Without,
}

impl Visit {
    pub(super) fn known(session: Arc<Session>) -> Self {
        Self { session, kind: Kind::Known }
    }

    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session, kind: Kind::New }
    }

    pub(super) fn restored(session: Arc<Session>, initialize: InitializeRequestParams) -> Self {
        Self { session, kind: Kind::Restored(Box::new(initialize)) }
    }

    pub(super) fn without_session(session: Arc<Session>) -> Self {
        Self { session, kind: Kind::Without }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    pub(super) fn store(&self) -> Arc<dyn SessionStore> {
        Arc::new(self.clone())
    }
}

/// Where the protocol keeps and finds what a client said of itself.
#[async_trait]
impl SessionStore for Visit {
    async fn load(&self, _: &str) -> Result<Option<SessionState>, SessionStoreError> {
        match &self.kind {
            Kind::Restored(initialize) => Ok(Some(SessionState::new((**initialize).clone()))),
            Kind::Known | Kind::New | Kind::Without => Ok(None),
        }
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        self.session.record.begin(id, Some(state.initialize_params.clone())).await;
        Ok(())
    }

    /// The end of the session does it.
    async fn delete(&self, _: &str) -> Result<(), SessionStoreError> {
        Ok(())
    }
}

pub(super) struct RequestManager {
    registry: Arc<Registry>,
    /// Taken when the session gets into the registry.
    opened: Mutex<Option<Arc<Session>>>,
    has_sessions: bool,
    /// Whether the client knows events without data.
    is_primed: bool,
}

impl RequestManager {
    pub(super) fn new(registry: Arc<Registry>, visit: Visit, is_primed: bool) -> Self {
        let has_sessions = !matches!(visit.kind, Kind::Without);
        let opened = match visit.kind {
            Kind::New | Kind::Restored(_) => Some(visit.session),
            Kind::Known | Kind::Without => None,
        };
        Self { registry, opened: Mutex::new(opened), has_sessions, is_primed }
    }

    fn streams(&self) -> &LocalSessionManager {
        &self.registry.streams
    }

    fn adopt(&self, id: &SessionId) {
        if let Some(session) = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.registry.insert(id, session);
        }
    }
}

impl SessionManager for RequestManager {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.streams().create_session().await?;
        self.adopt(&id);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.streams().initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.streams().has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        let closed = self.streams().close_session(id).await;
        self.registry.end(id).await;
        closed
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let stream = self.streams().create_stream(id, message).await?;
        let is_primed = self.is_primed;
        Ok(stream.filter_map(move |event| {
            let known = (is_primed || event.message.is_some()).then(|| with_request(event, request.as_ref()));
            std::future::ready(known)
        }))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.streams().accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.streams().create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let (event, request) = without_request(&last_event_id);
        let events = &self.registry.events;
        let resumed: Messages = match (events.position(event), request) {
            (Some(position), request) if !position.is_common() => {
                Box::pin(events.follow(position).map(move |event| with_request(event, request.as_ref())))
            }
            (Some(position), _) => {
                // The live stream comes first, so that nothing is lost between the two.
                let live = self.streams().create_standalone_stream(id).await?;
                let missed = events.missed(&position);
                let seen = missed.last().and_then(|event| events.position(event.event_id.as_deref()?));
                let seen = seen.unwrap_or(position);
                let news = live.filter(move |event| {
                    let is_new = seen.is_before(event.event_id.as_deref());
                    async move { is_new }
                });
                Box::pin(stream::iter(missed).chain(news))
            }
            (None, Some(request)) => Box::pin(stream::iter([lost(request)])),
            (None, None) => Box::pin(self.streams().create_standalone_stream(id).await?),
        };
        Ok(resumed)
    }

    async fn restore_session(&self, id: SessionId) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        let restored = self.streams().restore_session(id.clone()).await?;
        if let RestoreOutcome::Restored(_) = &restored {
            self.adopt(&id);
        }
        Ok(restored)
    }

    /// A request without a session is cancelled when its client hangs up, so nobody comes back for its events.
    fn event_store(&self) -> Option<Arc<dyn EventStore>> {
        self.has_sessions.then(|| Arc::clone(&self.registry.events) as _)
    }
}

fn with_request(mut event: ServerSseMessage, request: Option<&RequestId>) -> ServerSseMessage {
    if let (Some(id), Some(request)) = (&mut event.event_id, request)
        && let Ok(text) = serde_json::to_vec(request)
    {
        id.push('~');
        URL_SAFE_NO_PAD.encode_string(text, id);
    }
    event
}

fn without_request(id: &str) -> (&str, Option<RequestId>) {
    let Some((event, request)) = id.split_once('~') else { return (id, None) };
    let request = URL_SAFE_NO_PAD.decode(request).ok().and_then(|text| serde_json::from_slice(&text).ok());
    (event, request)
}

/// The response to a request whose events are gone.
fn lost(request: RequestId) -> ServerSseMessage {
    let message = "the server restarted while this call ran, and its result is lost; sandboxes go on, so look at what the \
        call did before you repeat it";
    ServerSseMessage::from_message(ServerJsonRpcMessage::error(ErrorData::internal_error(message, None), Some(request)))
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    #[test]
    fn an_event_names_its_request() {
        for request in [NumberOrString::Number(-7), NumberOrString::String("a~b/…".into())] {
            let mut event = ServerSseMessage::default();
            event.event_id = Some("17.stream".to_owned());
            let id = with_request(event, Some(&request)).event_id.unwrap();
            assert_eq!(without_request(&id), ("17.stream", Some(request)));
        }
        for id in ["", "17.stream", "17.stream~", "17.stream~!", "17.stream~bnVsbA"] {
            assert_eq!(without_request(id).1, None, "{id}");
        }
    }
}
