//! Small servers of this machine that a build asks: one that gives files, one that gives passwords for keys of AWS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answers every request with what `answer` makes of it, and notes the requests.
pub(crate) struct Web {
    pub(crate) address: String,
    /// Head and body of each request.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl Web {
    pub(crate) fn start(answer: impl Fn(&str) -> (u16, Vec<u8>) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let request = read(&stream);
                let (status, body) = answer(&request);
                log.lock().unwrap().push(request);
                let head =
                    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn read(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while reader.read_line(&mut text).unwrap_or(0) > 2 {}
    let length = text.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    text + &String::from_utf8_lossy(&body)
}
