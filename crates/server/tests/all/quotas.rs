//! Tiers and limits of teams: set by an admin, enforced in both APIs, kept over restarts, audited.

use crate::support;

use std::sync::Arc;

use isopod_server::ServerConfig;
use isopod_store::Scope;
use isopod_store::service::{QuotaLimits, Tiers};
use serde_json::{Value, json};

use support::{Client, Server, backend};

/// Three tiers. What enterprise does not limit is not limited, whatever all teams have.
fn with_tiers(config: &mut ServerConfig) {
    config.service.quotas.team = QuotaLimits { concurrent: Some(1), ..QuotaLimits::default() };
    let free = QuotaLimits { concurrent: Some(2), per_hour: Some(3), ..QuotaLimits::default() };
    let pro = QuotaLimits { concurrent: Some(4), memory_mib: Some(8192), ..QuotaLimits::default() };
    let limits = [("free", free), ("pro", pro), ("enterprise", QuotaLimits::default())];
    let limits = limits.map(|(name, limits)| (name.to_owned(), limits)).into();
    config.control.tiers = Tiers { default: None, limits };
}

async fn start() -> Server {
    Server::start_with(|config| {
        config.service.backend = Some(backend::fake() as Arc<_>);
        with_tiers(config);
    })
    .await
}

async fn team_of(client: &Client) -> String {
    client.get("/api/v1/quota").await.json["team_id"].as_str().unwrap().to_owned()
}

async fn set(admin: &Client, team: &str, body: Value) -> Value {
    let answer = admin.put(&format!("/api/v1/teams/{team}/quota"), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json
}

async fn statuses<const N: usize>(client: &Client, path: &str, body: Value) -> [u16; N] {
    let mut found = [0; N];
    for status in &mut found {
        *status = client.post(path, body.clone()).await.status;
    }
    found
}

#[tokio::test]
async fn a_team_has_the_limits_of_its_tier_also_after_a_restart() {
    let mut server = start().await;
    let admin = server.key_of(Scope::Admin).await;
    let team = team_of(&server.client).await;
    assert_eq!(statuses(&server.client, "/api/v1/sandboxes", json!({})).await, [201, 429], "as all teams");

    let quota = set(&admin, &team, json!({ "tier": "free" })).await;
    assert_eq!((&quota["tier"], &quota["own"]["tier"]), (&json!("free"), &json!("free")));
    let limits = json!({ "concurrent": 2, "per_hour": 3, "cpu_seconds_per_day": null, "memory_mb": null });
    assert_eq!((&quota["limits"], &quota["used"]["concurrent"]), (&limits, &json!(1)));
    let answer = server.client.post("/api/v1/sandboxes", json!({})).await;
    assert_eq!(answer.status, 201, "the change counts at once");
    let full = server.client.post("/api/v1/sandboxes", json!({})).await;
    assert_eq!((full.status, &full.json["error_code"]), (429, &json!("quota_exceeded")));
    let details = json!({ "owner": "team", "what": "concurrent", "limit": 2, "used": 2 });
    assert_eq!(full.json["details"], details);

    // Another team is in no tier.
    let other = server.other_team().await;
    assert_eq!(statuses(&other, "/api/v1/sandboxes", json!({})).await, [201, 429]);

    server.stop().await;
    let server = server.start_again().await;
    let admin = Client::new(server.address, &admin.key);
    assert_eq!(server.client.get("/api/v1/quota").await.json["tier"], "free");
    set(&admin, &team, json!({ "tier": "enterprise" })).await;
    assert_eq!(statuses(&server.client, "/api/v1/sandboxes", json!({})).await, [201; 5], "without a limit");
    let reset = admin.delete(&format!("/api/v1/teams/{team}/quota")).await;
    assert_eq!(
        (reset.status, &reset.json["tier"], &reset.json["limits"]["concurrent"]),
        (200, &json!(null), &json!(1))
    );
    assert_eq!(server.client.post("/api/v1/sandboxes", json!({})).await.status, 429);
}

/// Sandboxes of plain SDK clients count too.
#[tokio::test]
async fn a_tier_limits_sandboxes_of_the_e2b_api_also_when_they_resume() {
    let server = Server::start_with(with_tiers).await;
    let admin = server.key_of(Scope::Admin).await;
    let team = team_of(&server.client).await;
    set(&admin, &team, json!({ "tier": "free" })).await;
    let first = server.create(json!({})).await;
    server.create(json!({})).await;
    let full = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(full.status, 429, "{full:?}");
    assert!(full.text.contains("maximum number of concurrent sandboxes (2)"), "{}", full.text);
    assert_eq!(server.client.post(&format!("/sandboxes/{first}/pause"), json!({})).await.status, 204);
    server.create(json!({})).await;
    let resume = format!("/v2/sandboxes/{first}/connect");
    assert_eq!(server.client.post(&resume, json!({ "timeout": 60 })).await.status, 429);
    assert_eq!(server.client.get("/api/v1/quota").await.json["running"], 2);
    set(&admin, &team, json!({ "tier": "pro" })).await;
    assert_eq!(server.client.post(&resume, json!({ "timeout": 60 })).await.status, 201);
    // Nothing may be created, and what runs goes on.
    set(&admin, &team, json!({ "limits": { "concurrent": 0 } })).await;
    assert_eq!(statuses(&server.client, "/v2/sandboxes", json!({ "templateID": "base" })).await, [429]);
    assert_eq!(server.client.get("/api/v1/quota").await.json["running"], 3);
}

#[tokio::test]
async fn own_limits_replace_those_of_the_tier_one_by_one() {
    let server = start().await;
    let admin = server.key_of(Scope::Admin).await;
    let team = team_of(&server.client).await;
    let quota = set(&admin, &team, json!({ "tier": "pro", "limits": { "concurrent": 1, "per_hour": 2 } })).await;
    let limits = json!({ "concurrent": 1, "per_hour": 2, "cpu_seconds_per_day": null, "memory_mb": 8192 });
    assert_eq!((&quota["tier"], &quota["limits"]), (&json!("pro"), &limits));
    assert_eq!(statuses(&server.client, "/api/v1/sandboxes", json!({})).await, [201, 429]);
    // What a request leaves out is taken away.
    let quota = set(&admin, &team, json!({ "limits": { "per_hour": 2, "memory_mb": null } })).await;
    assert_eq!((&quota["tier"], &quota["limits"]["concurrent"]), (&json!(null), &json!(null)));
    assert_eq!(statuses(&server.client, "/api/v1/sandboxes", json!({})).await, [201, 429], "two within the hour");
}

#[tokio::test]
async fn bad_quotas_are_refused_with_the_reason_and_change_nothing() {
    let server = start().await;
    let admin = server.key_of(Scope::Admin).await;
    let team = team_of(&server.client).await;
    let path = format!("/api/v1/teams/{team}/quota");
    set(&admin, &team, json!({ "tier": "pro" })).await;
    for (bad, reason) in [
        (
            json!({ "tier": "gold" }),
            "there is no tier \"gold\"; the server's settings have these tiers: enterprise, free, pro",
        ),
        (json!({ "tier": "" }), "tier must be 1 to 128"),
        (json!({ "tier": 7 }), "invalid request body"),
        (json!({ "limits": { "concurrent": -1 } }), "limits.concurrent must be a whole number from 0 to 4294967295"),
        (json!({ "limits": { "per_hour": 1.5 } }), "limits.per_hour must be a whole number"),
        (json!({ "limits": { "memory_mb": "lots" } }), "limits.memory_mb must be a whole number"),
        (json!({ "limits": { "cpu_seconds_per_day": 4_294_967_296_u64 } }), "limits.cpu_seconds_per_day must be"),
        (json!({ "limits": { "colour": 1 } }), "unknown field `colour`"),
        (json!({ "limits": 5 }), "invalid request body"),
    ] {
        let answer = admin.put(&path, bad.clone()).await;
        assert_eq!((answer.status, &answer.json["error_code"]), (400, &json!("invalid_request")), "{bad}");
        assert!(answer.json["message"].as_str().unwrap().contains(reason), "{bad}: {}", answer.text);
    }
    for path in ["/api/v1/teams/nobody/quota", "/api/v1/teams/%2e%2e/quota"] {
        assert_eq!(admin.put(path, json!({ "tier": "pro" })).await.status, 404, "{path}");
        assert_eq!(admin.get(path).await.status, 404, "{path}");
        assert_eq!(admin.delete(path).await.status, 404, "{path}");
    }
    assert_eq!(admin.get(&path).await.json["own"]["tier"], "pro");
}

#[tokio::test]
async fn a_team_sees_its_own_limits_and_only_admins_see_and_set_all() {
    let server = start().await;
    let team = team_of(&server.client).await;
    let path = format!("/api/v1/teams/{team}/quota");
    for scope in [Scope::Team, Scope::ReadOnly, Scope::Agent("a".to_owned())] {
        let client = server.key_of(scope.clone()).await;
        assert_eq!(client.get("/api/v1/quota").await.status, 200, "{scope:?}");
        for path in ["/api/v1/quotas", "/api/v1/tiers", &path] {
            assert_eq!(client.get(path).await.status, 403, "{scope:?} {path}");
        }
        assert_eq!(client.put(&path, json!({ "tier": "enterprise" })).await.status, 403, "{scope:?}");
        assert_eq!(client.delete(&path).await.status, 403, "{scope:?}");
    }
    let admin = server.key_of(Scope::Admin).await;
    let other = team_of(&server.other_team().await).await;
    set(&admin, &other, json!({ "tier": "free" })).await;
    let all = admin.get("/api/v1/quotas").await.json;
    let tiers: Vec<_> = all["quotas"].as_array().unwrap().iter().map(|quota| quota["tier"].clone()).collect();
    assert_eq!(tiers, [json!(null), json!("free")]);
    let tiers = admin.get("/api/v1/tiers").await.json;
    assert_eq!((&tiers["default_tier"], &tiers["tiers"][1]["name"]), (&json!(null), &json!("free")));
    assert_eq!(tiers["tiers"][1]["limits"]["concurrent"], 2);

    // The audit says whose quota it was.
    let lines = admin.get("/api/v1/audit").await.json["lines"].clone();
    let line = lines.as_array().unwrap().iter().find(|line| line["action"] == "team.set_quota").unwrap();
    assert_eq!((&line["task"], &line["status"]), (&json!(format!("team/{other}")), &json!(200)));
}

/// The default tier is for teams without one, and for those whose tier is no longer in the settings.
#[tokio::test]
async fn a_tier_that_is_no_longer_in_the_settings_gives_way_to_the_default() {
    let server = Server::start_with(|config| {
        config.service.backend = Some(backend::fake() as Arc<_>);
        with_tiers(config);
        config.control.tiers.default = Some("free".to_owned());
    })
    .await;
    let team = team_of(&server.client).await;
    assert_eq!(server.client.get("/api/v1/quota").await.json["tier"], "free");
    server.sql(format!("INSERT INTO team_quotas (team, tier, updated_at) VALUES ('{team}', 'gone', 0)")).await;
    let quota = server.client.get("/api/v1/quota").await.json;
    assert_eq!((&quota["tier"], &quota["own"]["tier"]), (&json!("free"), &json!("gone")));
    assert_eq!(statuses(&server.client, "/api/v1/sandboxes", json!({})).await, [201, 201, 429]);
}
