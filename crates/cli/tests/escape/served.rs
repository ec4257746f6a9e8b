//! A server with sandboxes, and two teams that may not know of each other.

use isopod_store::Store;
use isopod_testkit::StateDir;
use serde_json::{Value, json};

use crate::BINARY;
use crate::common::raw::{Answer, ask};
use crate::common::{KEY, Server};

pub(crate) const GUEST_PORT: &str = "49983";

/// A server of a case.
pub(crate) struct Served {
    pub(crate) state: StateDir,
    pub(crate) server: Server,
}

/// A sandbox as its owner knows it.
pub(crate) struct Owned {
    pub(crate) id: String,
    pub(crate) token: String,
}

impl Served {
    pub(crate) fn start() -> Self {
        let state = StateDir::new(BINARY);
        let server = Self::serve(&state);
        Self { state, server }
    }

    pub(crate) fn serve(state: &StateDir) -> Server {
        Server::start(state.isopod().command(&["serve", "--pool-ready", "1", "--pool-prepared", "1"]))
    }

    /// A call of the API with this key.
    pub(crate) async fn api(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let text = body.map(Value::to_string).unwrap_or_default();
        let headers = [("x-api-key", key), ("content-type", "application/json")];
        ask(self.server.port(), method, path, &headers, text.as_bytes()).await
    }

    /// To a port of a sandbox, with whatever headers a client likes.
    pub(crate) async fn inside(&self, id: &str, port: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let ours = [("e2b-sandbox-id", id), ("e2b-sandbox-port", port)];
        ask(self.server.port(), "GET", path, &[&ours[..], headers].concat(), b"").await
    }

    pub(crate) async fn create(&self, fields: Value) -> Owned {
        let mut wanted = json!({ "templateID": "base" });
        let fields = fields.as_object().expect("fields").clone();
        wanted.as_object_mut().expect("an object").extend(fields);
        let made = self.api(KEY, "POST", "/v2/sandboxes", Some(&wanted)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let text = |name: &str| made.json()[name].as_str().unwrap_or_default().to_owned();
        Owned { id: text("sandboxID"), token: text("envdAccessToken") }
    }

    /// The key of a second team.
    pub(crate) async fn other_team(&self) -> String {
        let store = Store::open(self.state.path().join("isopod.db")).await.expect("the server's store");
        let key = store.create_team("others").await.expect("a team").0;
        store.close().await;
        key
    }

    pub(crate) async fn kill(&self, id: &str) -> u16 {
        self.api(KEY, "DELETE", &format!("/sandboxes/{id}"), None).await.status
    }

    /// Stops, and looks whether anything is left.
    pub(crate) fn finish(self) {
        self.server.stop();
        self.state.assert_nothing_left();
    }
}
