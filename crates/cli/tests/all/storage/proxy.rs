//! Stands in front of a server and stops passing anything on when it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    hangs: AtomicBool,
    held: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn start(endpoint: &str) -> Self {
        let upstream = endpoint.rsplit_once('/').expect("a URL").1.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let proxy = Self { port, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&upstream) else { continue };
                let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { continue };
                shared.open.lock().expect("no panic while held").extend(client.try_clone());
                let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || one.pass(from, to));
                std::thread::spawn(move || other.pass(server, client));
            }
        });
        proxy
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// From now on whatever is sent is swallowed.
    pub(crate) fn hang(&self) {
        self.shared.hangs.store(true, Ordering::Relaxed);
    }

    /// From now on everything is passed on again. Connections that were hanging are of no use any more, and are cut.
    pub(crate) fn recover(&self) {
        self.shared.hangs.store(false, Ordering::Relaxed);
        for stream in self.shared.open.lock().expect("no panic while held").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// How many messages were swallowed.
    pub(crate) fn held(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if self.hangs.load(Ordering::Relaxed) {
                self.held.fetch_add(1, Ordering::Relaxed);
            } else if to.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
}
