//! The client against the real guest, as a plain process on this machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use isopod_guest_client::TransportError;
use isopod_guest_client::guest::{
    Change, Code, Codec, EntryKind, Event, GuestError, PtySize, Signal, StartProcess, Upload, WatchDir,
};
use support::real_guest::RealGuest;

#[tokio::test]
async fn a_missing_command_or_directory_is_refused() {
    let real = RealGuest::start().await;
    let missing = real.guest.start(StartProcess::new("/no/such/program")).await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::InvalidArgument), "{missing}");
    let nowhere = real.guest.start(StartProcess::new("true").cwd("/no/such/dir")).await.unwrap_err();
    assert_eq!(nowhere.to_string(), "cwd '/no/such/dir' does not exist");
    let nobody = real.guest.start(StartProcess::new("true").user("no-such-user")).await.unwrap_err();
    assert_eq!(nobody.code(), Some(Code::Unauthenticated), "{nobody}");
}

#[tokio::test]
async fn output_and_exit_code_arrive_in_both_codecs() {
    let real = RealGuest::start().await;
    for codec in [Codec::Binary, Codec::Json] {
        let guest = real.guest.clone().with_codec(codec);
        let command = StartProcess::new("sh").args(["-c", "echo out $A; echo err >&2; exit 3"]).env("A", "1");
        let output = guest.run(command).await.unwrap();
        assert_eq!((output.text().as_str(), output.stderr.as_slice()), ("out 1\n", b"err\n".as_slice()));
        assert_eq!((output.ended.exit_code, output.ended.exited), (3, true));
        assert!(!output.ended.is_success());
    }
}

#[tokio::test]
async fn standard_input_reaches_the_process_until_it_is_closed() {
    let real = RealGuest::start().await;
    let process = real.guest.start(StartProcess::new("cat").with_stdin()).await.unwrap();
    let handle = process.handle();
    // More than pipes and buffers hold, so writing and reading must happen concurrently.
    let sent: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let input = sent.clone();
    let writer = tokio::spawn(async move {
        handle.send_stdin(input).await.unwrap();
        handle.close_stdin().await.unwrap();
    });
    let output = process.collect().await.unwrap();
    writer.await.unwrap();
    assert!(output.stdout == sent, "{} bytes came back", output.stdout.len());
    assert!(output.ended.is_success());
}

#[tokio::test]
async fn a_stream_is_piped_into_a_process() {
    let real = RealGuest::start().await;
    for codec in [Codec::Binary, Codec::Json] {
        let guest = real.guest.clone().with_codec(codec);
        let process = guest.start(StartProcess::new("sha256sum").with_stdin()).await.unwrap();
        let handle = process.handle();
        let pieces = futures::stream::iter((0..100).map(|_| Ok(Bytes::from(vec![b'a'; 10_000]))));
        handle.stream_stdin(pieces).await.unwrap();
        handle.close_stdin().await.unwrap();
        let sum = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert!(process.collect().await.unwrap().text().starts_with(sum));
        let never_ends = futures::stream::pending();
        assert!(handle.stream_stdin(never_ends).await.unwrap_err().is_not_found());
    }
}

#[tokio::test]
async fn without_standard_input_writing_is_refused() {
    let real = RealGuest::start().await;
    let process = real.guest.start(StartProcess::new("sleep").arg("60")).await.unwrap();
    let refused = process.handle().send_stdin("x").await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::FailedPrecondition));
    assert!(process.handle().signal(Signal::Kill).await.unwrap());
    let ended = process.collect().await.unwrap().ended;
    assert_eq!((ended.exit_code, ended.exited, ended.status.as_str()), (-1, false, "signal: killed"));
}

#[tokio::test]
async fn a_terminal_is_typed_into_and_resized() {
    let real = RealGuest::start().await;
    let command = StartProcess::new("sh").args(["-c", "read line; stty size; echo got $line"]);
    let mut process = real.guest.start(command.pty(PtySize { cols: 80, rows: 24 })).await.unwrap();
    let handle = process.handle();
    handle.resize(PtySize { cols: 100, rows: 30 }).await.unwrap();
    handle.send_pty("hello\n").await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        if let Event::Pty(bytes) = event {
            seen.extend_from_slice(&bytes);
        }
    }
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.contains("30 100") && seen.contains("got hello"), "{seen:?}");
}

#[tokio::test]
async fn signals_to_an_ended_process_are_not_delivered() {
    let real = RealGuest::start().await;
    let mut process = real.guest.start(StartProcess::new("sleep").arg("60")).await.unwrap();
    let handle = process.handle();
    assert_eq!(process.next().await.unwrap(), Some(Event::Started(handle.pid())));
    assert!(handle.signal(Signal::Term).await.unwrap());
    assert!(matches!(process.next().await.unwrap(), Some(Event::End(_))));
    assert_eq!(process.next().await.unwrap(), None);
    assert!(!handle.signal(Signal::Kill).await.unwrap());
}

#[tokio::test]
async fn a_time_limit_ends_the_process() {
    let real = RealGuest::start().await;
    let command = StartProcess::new("sleep").arg("60").timeout(Duration::from_millis(200));
    let error = real.guest.run(command).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::DeadlineExceeded));
    assert!(error.is_timeout());
}

#[tokio::test]
async fn a_process_outlives_its_stream_and_is_joined_again() {
    let real = RealGuest::start().await;
    let command = StartProcess::new("sh").args(["-c", "read line; echo $line"]).with_stdin().tag("reader");
    let process = real.guest.start(command).await.unwrap();
    let pid = process.pid();
    drop(process);
    let listed = real.guest.list_processes().await.unwrap();
    assert!(listed.iter().any(|info| info.pid == pid && info.tag.as_deref() == Some("reader")), "{listed:?}");
    let joined = real.guest.connect_tag("reader").await.unwrap();
    assert_eq!(joined.pid(), pid);
    real.guest.process(pid).send_stdin("again\n").await.unwrap();
    assert_eq!(joined.collect().await.unwrap().text(), "again\n");
    assert!(real.guest.connect(1_000_000).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_guest_that_dies_ends_its_streams_with_an_error() {
    let mut real = RealGuest::start().await;
    let mut process = real.guest.start(StartProcess::new("cat").with_stdin()).await.unwrap();
    process.next().await.unwrap();
    real.kill().await;
    let error = process.next().await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(_)), "{error:?}");
    assert_eq!(process.next().await.unwrap(), None);
    let error = real.guest.start("true").await.unwrap_err();
    assert!(matches!(&error, GuestError::Transport(error) if error.was_never_sent()), "{error:?}");
}

#[tokio::test]
async fn many_processes_run_side_by_side() {
    let real = RealGuest::start().await;
    let runs = (0..40).map(|n| {
        let guest = real.guest.clone();
        async move { guest.run(StartProcess::new("echo").arg(n.to_string())).await.unwrap().text() }
    });
    let outputs: BTreeMap<usize, String> = futures::future::join_all(runs).await.into_iter().enumerate().collect();
    assert!(outputs.iter().all(|(n, text)| *text == format!("{n}\n")), "{outputs:?}");
}

#[tokio::test]
async fn files_that_cannot_be_read_or_written_are_refused() {
    let real = RealGuest::start().await;
    assert!(real.guest.read_file("/no/such/file").await.unwrap_err().is_not_found());
    assert_eq!(real.guest.read_file("/tmp").await.unwrap_err().code(), Some(Code::InvalidArgument));
    assert!(real.guest.write_file("/proc/self/x", "x").await.is_err());
    assert!(real.guest.stat("/no/such/file").await.unwrap_err().is_not_found());
    assert!(real.guest.list_dir("/no/such/dir", 1).await.unwrap_err().is_not_found());
    assert!(real.guest.move_entry("/no/such/file", "/tmp/x").await.unwrap_err().is_not_found());
    assert!(real.guest.watch_dir(WatchDir::new("/no/such/dir")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn files_come_back_as_they_were_written() {
    let real = RealGuest::start().await;
    let path = real.path("deep/down/ä file+1%.bin");
    let contents: Vec<u8> = (0..20_000_000u32).map(|n| (n % 253) as u8).collect();
    let pieces: Vec<_> = contents.chunks(77_777).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let written = real.guest.write_file(&path, Upload::stream(futures::stream::iter(pieces))).await.unwrap();
    assert_eq!((written.name.as_str(), &written.path), ("ä file+1%.bin", &path));
    let mut download = real.guest.read_file(&path).await.unwrap();
    assert_eq!(download.size(), Some(contents.len() as u64));
    let mut read = Vec::new();
    while let Some(piece) = download.next().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert!(read == contents, "{} bytes came back", read.len());
    real.guest.write_file(&path, "").await.unwrap();
    assert_eq!(real.guest.read_file(&path).await.unwrap().collect().await.unwrap(), "");
    let from_reader = Upload::reader(std::io::Cursor::new(b"read".to_vec()));
    real.guest.write_file(&path, from_reader).await.unwrap();
    assert_eq!(real.guest.read_file(&path).await.unwrap().collect().await.unwrap(), "read");
}

#[tokio::test]
async fn a_refusal_is_heard_while_a_large_file_is_still_being_sent() {
    let real = RealGuest::start().await;
    for size in [1, 1 << 20, 50 << 20] {
        let error = real.guest.write_file("/tmp", vec![1; size]).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::InvalidArgument), "{size}: {error:?}");
        let pieces = futures::stream::iter((0..size / 1000 + 1).map(|_| Ok(Bytes::from(vec![1; 1000]))));
        let error = real.guest.write_file("/tmp", Upload::stream(pieces)).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::InvalidArgument), "{size}: {error:?}");
    }
}

#[tokio::test]
async fn a_source_that_fails_leaves_an_error() {
    let real = RealGuest::start().await;
    let pieces = [Ok(Bytes::from_static(b"begun")), Err(std::io::Error::other("the disk is on fire"))];
    let error =
        real.guest.write_file(&real.path("x"), Upload::stream(futures::stream::iter(pieces))).await.unwrap_err();
    assert!(matches!(&error, GuestError::Transport(TransportError::Source { .. })), "{error:?}");
}

#[tokio::test]
async fn entries_are_made_listed_moved_and_removed() {
    let real = RealGuest::start().await;
    let (dir, file, moved) = (real.path("a/b"), real.path("a/b/f"), real.path("a/g"));
    assert!(!real.guest.exists(&dir).await.unwrap());
    assert!(real.guest.make_dir(&dir).await.unwrap());
    assert!(!real.guest.make_dir(&dir).await.unwrap());
    real.guest.write_file(&file, "12345").await.unwrap();
    let entry = real.guest.stat(&file).await.unwrap();
    assert_eq!((entry.kind, entry.size, entry.owner.as_str()), (EntryKind::File, 5, "root"));
    assert!(entry.modified.unwrap() > std::time::SystemTime::now() - Duration::from_secs(60));
    assert_eq!(real.guest.move_entry(&file, &moved).await.unwrap().path, moved);
    let mut names: Vec<String> =
        real.guest.list_dir(real.path("a"), 2).await.unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, ["b", "g"]);
    real.guest.remove(real.path("a")).await.unwrap();
    real.guest.remove(real.path("a")).await.unwrap();
    assert!(!real.guest.exists(&dir).await.unwrap());
}

#[tokio::test]
async fn changes_in_a_directory_are_seen() {
    let real = RealGuest::start().await;
    let mut watch = real.guest.watch_dir(WatchDir::new(real.path(""))).await.unwrap();
    real.guest.write_file(&real.path("new"), "x").await.unwrap();
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!((first.name.as_str(), first.change), ("new", Change::Created));
    real.guest.remove(real.path("new")).await.unwrap();
    while watch.next().await.unwrap().unwrap().change != Change::Removed {}
}

#[tokio::test]
async fn the_guest_tells_how_it_is() {
    let real = RealGuest::start().await;
    real.guest.health().await.unwrap();
    let metrics = real.guest.metrics().await.unwrap();
    assert!(metrics.cpu_count > 0 && metrics.mem_total > 0 && metrics.timestamp > 0, "{metrics:?}");
}
