//! Teams, their members and their keys.

use isopod_store::secrets::hash_key;
use isopod_store::{Scope, Store};

use crate::values::{at, team};

pub(crate) async fn check(store: &Store) {
    check_teams(store).await;
    check_keys(store).await;
    check_which_keys_count(store).await;
}

async fn check_teams(store: &Store) {
    let teams = store.list_teams().await.unwrap();
    let found: Vec<_> = teams.iter().map(|team| (team.id.0.as_str(), team.name.as_str(), team.created_at)).collect();
    let wanted = [
        ("1113f0a9-4f45-44b0-a887-6e9175f687b0", "default", at(0)),
        ("b743cbe1-bb10-4033-8586-94774ad7146d", "second team", at(2)),
        ("team-named", "Named", at(4)),
    ];
    assert_eq!(found, wanted);
    assert_eq!(store.ensure_team().await.unwrap(), team());
    assert!(store.is_member("team-named", "ada@example.com").await.unwrap());
}

async fn check_keys(store: &Store) {
    let keys = store.list_keys(&team()).await.unwrap();
    let found: Vec<_> = keys
        .iter()
        .map(|key| (key.name.as_str(), &key.scope, key.created_at, key.last_used_at, key.expires_at))
        .collect();
    let (agent, centuries) = (Scope::Agent("builder".to_owned()), 6_307_200_000);
    // The revoked key is not listed.
    let wanted = [
        ("first key", &Scope::Team, at(1), None, None),
        ("agent key", &agent, at(6), None, Some(at(6 + centuries))),
        ("reader", &Scope::ReadOnly, at(7), Some(at(8)), None),
        ("operator of the night", &Scope::Admin, at(9), None, None),
        ("expired", &Scope::Team, at(10), None, Some(at(11))),
        ("rotated", &Scope::Team, at(13), None, Some(at(15 + centuries))),
        ("rotated", &Scope::Team, at(14), None, None),
    ];
    assert_eq!(found, wanted);
    assert_eq!(keys[0].id, "2ae2f0de-cb81-4c1e-87b1-dcbc19912b19");
    let mask = &keys[0].mask;
    assert_eq!((mask.length, mask.prefix.as_str(), mask.suffix.as_str()), (44, "e2b_11", "1111"));
}

/// Existing keys continue to work.
async fn check_which_keys_count(store: &Store) {
    let scopes = [
        ("1", Some(Scope::Team)),
        ("2", Some(Scope::Agent("builder".to_owned()))),
        ("3", Some(Scope::ReadOnly)),
        ("4", Some(Scope::Admin)),
        ("5", None), // expired
        ("6", None), // revoked
        ("7", Some(Scope::Team)),
    ];
    for (digit, scope) in scopes {
        let key = format!("e2b_{}", digit.repeat(40));
        let owner = store.find_key(&hash_key(&key)).await.unwrap();
        let wanted = scope.map(|scope| (team(), "default".to_owned(), scope));
        assert_eq!(owner.map(|owner| (owner.team, owner.team_name, owner.scope)), wanted, "{key}");
    }
}
