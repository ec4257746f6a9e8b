//! The client's `FileStorage` and `Toolkit` against a real server on plain directories.

use crate::support;

use std::time::Duration;

use isopod_client::storage::{KeyError, StorageError};
use isopod_client::{ApiError, Client, ClientConfig, FileStorage, Toolkit};
use isopod_files::workspace::Workspace;
use serde_json::{Value, json};

use support::Server;

async fn stage() -> (Server, tempfile::TempDir, Client) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let server = Server::start_with(move |config| config.control.workspace = Some(Workspace::new(&path))).await;
    let client = client_of(&server, &server.client.key);
    (server, root, client)
}

fn client_of(server: &Server, key: &str) -> Client {
    let url = format!("http://{}", server.address);
    Client::new(ClientConfig { api_url: url, api_key: key.to_owned(), ..ClientConfig::default() }).unwrap()
}

#[tokio::test]
async fn what_the_host_puts_is_where_its_path_says() {
    let (_server, root, client) = stage().await;
    let storage = FileStorage::open(&client, "test_e2b_001").await.unwrap();
    let stored = storage.put("test.txt", "Hello from host!", None).await.unwrap();
    let path = storage.get_artifacts_path("test.txt").unwrap();
    assert_eq!((stored.as_str(), path.as_str()), (path.as_str(), storage.get_full_path("test.txt").unwrap().as_str()));
    let on_disk = root.path().join(path.strip_prefix("/opt/sentient/").unwrap());
    assert_eq!(std::fs::read_to_string(on_disk).unwrap(), "Hello from host!");
    assert_eq!(storage.get_plots_path("p.png").unwrap(), format!("{}/results/plots/p.png", storage.root_path()));
    assert_eq!(storage.get_temp_path("../x"), Err(KeyError::Forbidden));
    let info = storage.get_storage_info().await.unwrap();
    assert_eq!((info.file_count, info.total_size_bytes, info.total_size_mb), (1, 16, 0.0));
    assert_eq!(info.reports_path, format!("{}/results/reports", storage.root_path()));
}

#[tokio::test]
async fn bytes_texts_json_and_notes_come_back_as_they_went() {
    let (_server, _root, client) = stage().await;
    let storage = FileStorage::open(&client, "e").await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    let note = json!({ "rows": 3, "by": "é" });
    storage.put("b.bin", bytes.clone(), note.as_object()).await.unwrap();
    assert_eq!(storage.get("b.bin").await.unwrap().unwrap(), bytes);
    assert_eq!(storage.get_size("b.bin").await.unwrap(), Some(1_000_000));
    assert_eq!(storage.get_metadata("b.bin").await.unwrap().map(Value::Object), Some(note));
    storage.put_text("odd name %2f é.txt", "grüße").await.unwrap();
    assert_eq!(storage.get_text("odd name %2f é.txt").await.unwrap().as_deref(), Some("grüße"));
    storage.put_json("results/v.json", &json!([1, null])).await.unwrap();
    assert_eq!(storage.get_json::<Value>("results/v.json").await.unwrap(), Some(json!([1, null])));
    assert!(matches!(storage.get_text("b.bin").await, Err(StorageError::Content { .. })));
    assert!(storage.exists("b.bin").await.unwrap() && !storage.exists("nothing").await.unwrap());
    assert_eq!(storage.get("nothing").await.unwrap(), None);
    assert_eq!(storage.get_size("nothing").await.unwrap(), None);
    assert!(storage.delete("b.bin").await.unwrap() && !storage.delete("b.bin").await.unwrap());
    assert_eq!(storage.list_keys("").await.unwrap(), ["artifacts/odd name %2f é.txt", "results/v.json"]);
    storage.copy("results/v.json", "outputs/v.json").await.unwrap();
    storage.rename("outputs/v.json", "temp/v.json").await.unwrap();
    assert_eq!(storage.list_keys("results/").await.unwrap(), ["results/v.json"]);
    assert_eq!(storage.list_keys("temp").await.unwrap(), ["temp/v.json"]);
    assert_eq!(storage.cleanup_temp_files(Duration::from_secs(24 * 3600)).await.unwrap(), 0);
    assert_eq!(storage.cleanup_execution_temp_files().await.unwrap(), 1);
}

#[tokio::test]
async fn files_of_this_machine_go_in_and_are_removed_only_when_they_are_stored() {
    let (_server, _root, client) = stage().await;
    let storage = FileStorage::open(&client, "e").await.unwrap();
    let local = tempfile::tempdir().unwrap();
    let file = local.path().join("a.bin");
    std::fs::write(&file, [0, 255, 10]).unwrap();
    storage.copy_local(&file, "copy").await.unwrap();
    assert!(file.exists());
    assert!(storage.move_local(&file, "a.metadata").await.is_err());
    assert!(file.exists());
    storage.move_local(&file, "moved").await.unwrap();
    assert!(!file.exists());
    assert_eq!(storage.get("moved").await.unwrap().unwrap(), [0, 255, 10].as_slice());
    assert!(matches!(storage.copy_local(&file, "x").await, Err(StorageError::Local { .. })));
    let keys: Vec<String> = (0..3).map(|_| storage.generate_key("plot", "png").unwrap()).collect();
    assert!(keys.iter().all(|key| key.starts_with("artifacts/plot_") && key.ends_with(".png")));
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
}

#[tokio::test]
async fn another_teams_execution_is_not_found() {
    let (server, _root, client) = stage().await;
    let storage = FileStorage::open(&client, "e").await.unwrap();
    let stranger = client_of(&server, &server.other_team().await.key);
    let refused = FileStorage::open(&stranger, "e").await;
    assert!(matches!(refused, Err(StorageError::Api(ApiError::NotFound { .. }))), "{refused:?}");
    storage.remove_everything().await.unwrap();
    FileStorage::open(&stranger, "e").await.unwrap();
}

/// The client computes paths without asking, so it must normalize keys as the server does.
#[tokio::test]
async fn client_and_server_read_keys_alike() {
    let (_server, _root, client) = stage().await;
    let storage = FileStorage::open(&client, "e").await.unwrap();
    for key in ["a", "/c//b", "./x/.", "temp", "temp/y", "tempo/y", "results/plots/z", "logs./l", "...", "a..b"] {
        let stored = storage.put(key, "x", None).await;
        match key {
            "temp" => assert!(stored.is_err()),
            _ => assert_eq!(stored.unwrap(), storage.get_full_path(key).unwrap(), "{key}"),
        }
    }
}

/// Status, URL, restart and upload through the client. `cli` tests what runs inside with real sandboxes.
#[tokio::test]
async fn the_toolkit_speaks_with_the_server() {
    let (_server, _root, client) = stage().await;
    let toolkit = Toolkit::new(&client, "e");
    assert_eq!(toolkit.schemas().await.unwrap().as_array().unwrap().len(), 12);
    assert!(!toolkit.close().await.unwrap());
    assert_eq!(toolkit.get_sandbox_status().await.unwrap()["status"], "no_sandbox");
    let url = toolkit.get_sandbox_url(8080).await.unwrap();
    assert_eq!((&url["success"], &url["port"]), (&json!(true), &json!(8080)));
    let restarted = toolkit.restart_sandbox().await.unwrap();
    assert_eq!(restarted["old_sandbox_id"], url["sandbox_id"]);
    let missing = toolkit.upload_file("/there/is/no/such/file", "/x").await.unwrap();
    assert_eq!((&missing["success"], &missing["ok"]), (&json!(false), &json!(false)));
    assert!(toolkit.call("rm", json!({})).await.is_err());
    assert!(toolkit.close().await.unwrap());
}
