use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::chunks::{MAX_CHUNK, for_each_chunk};
use super::*;

const PAGE: usize = 4096;

/// Pages that differ from each other, and are the same for the same numbers.
fn pages(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    let page = |number: u64| {
        let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        (0..PAGE / 8).flat_map(word).collect::<Vec<u8>>()
    };
    numbers.flat_map(page).collect()
}

struct Place {
    _directory: tempfile::TempDir,
    packed: Arc<PackedMemory>,
    chunks: PathBuf,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (root, chunks) = (directory.path().to_owned(), directory.path().join("chunks"));
        Self { packed: PackedMemory::new(chunks.clone()), chunks, root, _directory: directory }
    }

    /// As a server that was just started sees it.
    fn restarted(self) -> Self {
        Self { packed: PackedMemory::new(self.chunks.clone()), ..self }
    }

    fn save(&self, name: &str, pages: &[u8], files: &[u8]) -> PathBuf {
        let memory = self.root.join(name);
        fs::create_dir_all(memory.join("images")).unwrap();
        fs::write(memory.join("saved.json"), "{}").unwrap();
        fs::write(memory.join("images/inventory.img"), "small").unwrap();
        fs::write(memory.join("images/pages-1.img"), pages).unwrap();
        fs::write(memory.join("files"), files).unwrap();
        memory
    }

    /// The names and contents of all chunks.
    fn all_chunks(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = |path: &Path| -> Vec<PathBuf> {
            fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        };
        let all = entries(&self.chunks).into_iter().flat_map(|directory| entries(&directory));
        all.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    async fn content(&self, memory: &Path) -> Result<(Vec<u8>, Vec<u8>), MemoryError> {
        let _in_use = self.packed.unpack(memory).await?;
        Ok((fs::read(memory.join("images/pages-1.img")).unwrap(), fs::read(memory.join("files")).unwrap()))
    }
}

fn is_unpacked(memory: &Path) -> bool {
    memory.join("images/pages-1.img").exists() && memory.join("files").exists()
}

#[tokio::test]
async fn packed_memory_comes_back_byte_for_byte() {
    let place = Place::new();
    let contents = [pages(0..1000), vec![0; 3 * MAX_CHUNK + 5], Vec::new(), b"short".to_vec(), pages(7..8)];
    for (number, content) in contents.iter().enumerate() {
        let memory = place.save(&format!("memory-{number}"), content, b"an archive");
        assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
        assert!(!memory.join("images/pages-1.img").exists() && !memory.join("files").exists());
        assert!(is_packed(&memory) && memory.join("images/inventory.img").exists());
        assert_eq!(place.packed.pack(&memory).unwrap(), Pack::AlreadyPacked);
        assert_eq!(place.content(&memory).await.unwrap(), (content.clone(), b"an archive".to_vec()));
        // And once more from what was made again.
        assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
        assert_eq!(place.content(&memory).await.unwrap(), (content.clone(), b"an archive".to_vec()));
        let mode = |path: &str| memory.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("images/pages-1.img"), mode("files"), mode("packed.json")], [0o600; 3]);
    }
    let compressed: usize = place.all_chunks().iter().map(|(_, content)| content.len()).sum();
    assert!(compressed < contents.iter().map(Vec::len).sum::<usize>() * 3 / 4, "zeros take little space");
    assert!(place.all_chunks().iter().all(|(path, _)| path.metadata().unwrap().permissions().mode() & 0o777 == 0o600));
}

#[tokio::test]
async fn a_file_that_was_not_made_again_completely_does_not_replace_its_chunks() {
    let place = Place::new();
    let content = pages(0..500);
    for broken in [&content[..content.len() / 2], b"", &pages(0..600)] {
        let memory = place.save(&format!("memory-{}", broken.len()), &content, b"an archive");
        assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
        drop(place.packed.unpack(&memory).await.unwrap());
        // As after a power cut, of which the next server could not remove it.
        fs::write(memory.join("images/pages-1.img"), broken).unwrap();
        assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
        assert!(!memory.join("images/pages-1.img").exists());
        assert_eq!(place.content(&memory).await.unwrap(), (content.clone(), b"an archive".to_vec()));
    }
}

#[test]
fn snapshots_share_what_they_have_in_common_also_after_pages_were_added() {
    let place = Place::new();
    let first = place.save("first", &pages(0..4000), b"");
    place.packed.pack(&first).unwrap();
    let before = place.all_chunks().len();
    // Pages at the beginning, a changed one, and pages at the end.
    let changed = pages((90_000..90_003).chain(0..2000).chain([99_999]).chain(2001..4000).chain(95_000..95_010));
    let second = place.save("second", &changed, b"");
    place.packed.pack(&second).unwrap();
    let added = place.all_chunks().len() - before;
    assert!(before > 20 && added <= 6, "{added} chunks beside {before}");
}

#[test]
fn chunks_have_bounded_sizes_and_lose_nothing() {
    for content in [pages(0..3000), vec![7; 5 * MAX_CHUNK + 1], vec![1; PAGE - 1]] {
        let mut chunks = Vec::new();
        for_each_chunk(content.as_slice(), |chunk| {
            chunks.push(chunk.to_vec());
            Ok(true)
        })
        .unwrap();
        assert!(chunks.iter().all(|chunk| chunk.len() <= MAX_CHUNK));
        assert!(chunks.iter().rev().skip(1).all(|chunk| chunk.len() >= 8 * PAGE && chunk.len().is_multiple_of(PAGE)));
        assert_eq!(chunks.concat(), content);
    }
}

#[tokio::test]
async fn what_is_in_use_is_not_packed() {
    let place = Place::new();
    let memory = place.save("memory", &pages(0..50), b"files");
    let (first, second) = (place.packed.unpack(&memory).await.unwrap(), place.packed.unpack(&memory).await.unwrap());
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::NotNow);
    drop(first);
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::NotNow);
    assert!(is_unpacked(&memory));
    drop(second);
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_restores_at_once_find_the_memory_while_it_is_packed_again_and_again() {
    let place = Arc::new(Place::new());
    let content = pages(0..200);
    let memory = place.save("memory", &content, b"files");
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
    let packing = {
        let (place, memory) = (Arc::clone(&place), memory.clone());
        let pack = move |_| {
            place.packed.pack(&memory).unwrap();
        };
        tokio::task::spawn_blocking(|| (0..200).for_each(pack))
    };
    let restores = (0..8).map(|_| {
        let (place, memory, content) = (Arc::clone(&place), memory.clone(), content.clone());
        tokio::spawn(async move {
            for _ in 0..50 {
                assert!(place.content(&memory).await.unwrap().0 == content);
            }
        })
    });
    for restore in restores.collect::<Vec<_>>() {
        restore.await.unwrap();
    }
    packing.await.unwrap();
    assert!(place.content(&memory).await.unwrap().0 == content);
    let names: HashSet<_> = fs::read_dir(&memory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "nothing unfinished is left: {names:?}");
}

#[tokio::test]
async fn after_a_crash_at_any_step_the_memory_is_whole() {
    let content = pages(0..300);
    for step in ["chunks", "index", "one file removed", "made again in part"] {
        let place = Place::new();
        let memory = place.save("memory", &content, b"files");
        match step {
            // The chunks are written, and nothing names them.
            "chunks" => {
                let other = place.save("other", &content, b"files");
                place.packed.pack(&other).unwrap();
                fs::remove_dir_all(other).unwrap();
            }
            "index" => {
                place.packed.pack(&memory).unwrap();
                drop(place.content(&memory).await.unwrap());
            }
            "one file removed" => {
                place.packed.pack(&memory).unwrap();
                fs::write(memory.join("files"), b"files").unwrap();
            }
            // A power cut left a file that has its name and not its content.
            _ => {
                place.packed.pack(&memory).unwrap();
                fs::write(memory.join("images/pages-1.img"), &content[..PAGE]).unwrap();
                fs::write(memory.join("files"), b"").unwrap();
            }
        }
        let place = place.restarted();
        place.packed.recover(std::slice::from_ref(&memory)).unwrap();
        assert!(place.content(&memory).await.unwrap() == (content.clone(), b"files".to_vec()), "{step}");
    }
}

#[tokio::test]
async fn an_error_while_files_are_removed_loses_none_at_the_next_pack() {
    let place = Place::new();
    let content = pages(0..30);
    let memory = place.save("memory", &content, b"files");
    place.packed.pack(&memory).unwrap();
    // As if it had not been removed.
    fs::write(memory.join("files"), b"files").unwrap();
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::Packed);
    assert!(place.content(&memory).await.unwrap() == (content, b"files".to_vec()));
}

#[tokio::test]
async fn a_damaged_or_missing_chunk_is_an_error_and_leaves_no_file() {
    let place = Place::new();
    let content = pages(0..100);
    let memory = place.save("memory", &content, b"files");
    place.packed.pack(&memory).unwrap();
    let (path, chunk) = place.all_chunks().into_iter().max_by_key(|(_, chunk)| chunk.len()).unwrap();
    let other = zstd::bulk::compress(&pages(500..510), 1).unwrap();
    for damaged in [Some(chunk[..chunk.len() / 2].to_vec()), Some(other), Some(Vec::new()), None] {
        match damaged {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = place.content(&memory).await.unwrap_err();
        assert_eq!(error.to_string(), "could not unpack the memory");
        assert!(!memory.join("images/pages-1.img").exists());
        assert!(
            fs::read_dir(&memory)
                .unwrap()
                .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with(".unpacked") })
        );
    }
    // Memory with the same content repairs it.
    let same = place.save("same", &content, b"files");
    place.packed.pack(&same).unwrap();
    assert!(place.content(&memory).await.unwrap().0 == content);
}

#[tokio::test]
async fn what_rests_is_packed_and_chunks_go_with_the_memory() {
    let place = Place::new();
    let (rested, used) = (place.save("rested", &pages(0..50), b""), place.save("used", &pages(0..50), b""));
    let before = std::time::SystemTime::now() - Duration::from_secs(1000);
    for memory in [&rested, &used] {
        fs::File::open(memory).unwrap().set_modified(before).unwrap();
    }
    // Notes the use.
    drop(place.packed.unpack(&used).await.unwrap());
    let maintain = async |all: Vec<PathBuf>| {
        let memories = SavedMemories { packable: all.clone(), all };
        Arc::clone(&place.packed).maintain(memories, Duration::from_secs(900), ()).await;
    };
    let gone = place.root.join("gone");
    maintain(vec![rested.clone(), used.clone(), gone]).await;
    assert!(is_packed(&rested) && !is_unpacked(&rested));
    assert!(!is_packed(&used) && is_unpacked(&used));
    fs::remove_dir_all(&rested).unwrap();
    maintain(vec![rested, used]).await;
    assert!(!place.chunks.exists());
}

#[tokio::test]
async fn chunks_of_what_was_not_finished_go_at_the_next_time_also_if_that_fails_once() {
    let place = Place::new();
    let (kept, broken) = (place.save("kept", &pages(0..50), b""), place.save("broken", &pages(100..200), b""));
    place.packed.pack(&kept).unwrap();
    let before = place.all_chunks().len();
    // Its list cannot be written, after all of its chunks were.
    fs::create_dir(broken.join(".packed.json.new")).unwrap();
    place.packed.pack(&broken).unwrap_err();
    assert!(place.all_chunks().len() > before && is_unpacked(&broken));
    let list = fs::read(kept.join("packed.json")).unwrap();
    let maintain = async || {
        let all = vec![kept.clone(), broken.clone()];
        let memories = SavedMemories { packable: vec![broken.clone()], all };
        Arc::clone(&place.packed).maintain(memories, Duration::ZERO, ()).await;
    };
    fs::write(kept.join("packed.json"), "{").unwrap();
    maintain().await;
    assert!(place.all_chunks().len() > before);
    fs::write(kept.join("packed.json"), list).unwrap();
    maintain().await;
    assert_eq!(place.all_chunks().len(), before);
    assert!(place.content(&broken).await.unwrap().0 == pages(100..200));
}

#[tokio::test]
async fn a_node_that_closes_packs_no_more_and_what_it_began_is_whole() {
    let place = Place::new();
    let memory = place.save("memory", &pages(0..100), b"files");
    place.packed.close();
    assert_eq!(place.packed.pack(&memory).unwrap(), Pack::NotNow);
    assert!(is_unpacked(&memory) && !is_packed(&memory));
    let place = place.restarted();
    fs::write(memory.join(".unpacked-7"), "a part").unwrap();
    place.packed.recover(std::slice::from_ref(&memory)).unwrap();
    assert!(!memory.join(".unpacked-7").exists());
    assert!(place.content(&memory).await.unwrap() == (pages(0..100), b"files".to_vec()));
}

#[tokio::test]
async fn a_sweep_removes_the_chunks_that_nothing_names() {
    let place = Place::new();
    let (common, own) = (pages(0..500), pages(1000..1500));
    let first = place.save("first", &common, b"files");
    let second = place.save("second", &[common.clone(), own].concat(), b"files");
    let all = [first.clone(), second.clone()];
    all.iter().for_each(|memory| assert_eq!(place.packed.pack(memory).unwrap(), Pack::Packed));
    let before = place.all_chunks().len();
    place.packed.sweep(&all).unwrap();
    assert_eq!(place.all_chunks().len(), before);
    fs::remove_dir_all(second).unwrap();
    place.packed.sweep(std::slice::from_ref(&first)).unwrap();
    assert!(place.all_chunks().len() < before);
    assert!(place.content(&first).await.unwrap().0 == common);
    // A list that cannot be read may name any of them.
    fs::write(first.join("packed.json"), "{").unwrap();
    let kept = place.all_chunks().len();
    place.packed.sweep(std::slice::from_ref(&first)).unwrap_err();
    assert_eq!(place.all_chunks().len(), kept);
    place.packed.sweep(&[]).unwrap();
    assert!(!place.chunks.exists());
}

#[tokio::test]
async fn a_list_that_leads_elsewhere_is_refused() {
    let place = Place::new();
    let memory = place.save("memory", &pages(0..10), b"files");
    for path in ["../other", "/etc/passwd", "images/../../x"] {
        let index = format!(r#"{{"version":1,"files":[{{"path":"{path}","size":0,"chunks":[]}}]}}"#);
        fs::write(memory.join("packed.json"), index).unwrap();
        place.packed.unpack(&memory).await.unwrap_err();
        place.packed.recover(std::slice::from_ref(&memory)).unwrap_err();
    }
    fs::write(memory.join("packed.json"), r#"{"version":2,"files":[]}"#).unwrap();
    place.packed.unpack(&memory).await.unwrap_err();
    assert!(is_unpacked(&memory));
}
