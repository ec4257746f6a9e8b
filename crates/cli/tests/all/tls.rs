//! https: certificates that are made, kept and given; what the port says to whom.

use crate::served;

use std::fs;

use isopod_testkit::StateDir;
use served::{BINARY, Served, host, text};

fn curl(arguments: &[&str]) -> (String, bool) {
    let output = host("curl", &[&["-sS", "--max-time", "20"], arguments].concat());
    (text(&output), output.status.success())
}

#[test]
fn certificates_are_made_once_and_their_keys_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let state = StateDir::new(BINARY);
    let isopod = state.isopod();
    assert_eq!(isopod.run(&["tls", "ca"]).code(), 125, "there is none yet");
    for bad in ["localhost", "*.x.y", "a b.c"] {
        assert_eq!(isopod.run(&["tls", "init", "--domain", bad]).code(), 125, "{bad}");
    }
    let said = isopod.run(&["tls", "init"]).ok();
    let directory = state.path().join("tls");
    assert!(said.contains(&format!("SSL_CERT_FILE={}", directory.join("bundle.pem").display())), "{said}");
    assert!(said.contains(&format!("NODE_EXTRA_CA_CERTS={}", directory.join("ca.pem").display())), "{said}");
    assert!(!said.contains("PRIVATE KEY"));
    let read = || ["ca.pem", "ca.key", "server.pem", "server.key"].map(|name| fs::read(directory.join(name)).unwrap());
    let before = read();
    isopod.run(&["tls", "init"]).ok();
    assert_eq!(read(), before, "what is there is kept");
    for name in ["ca.key", "server.key"] {
        assert_eq!(fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(isopod.run(&["tls", "ca"]).ok().as_bytes(), before[0]);
}

#[test]
fn openssl_accepts_the_certificate_for_all_names_and_no_others() {
    let state = StateDir::new(BINARY);
    let out = tempfile::tempdir().unwrap();
    let directory = out.path().to_str().unwrap();
    state.isopod().run(&["tls", "init", "--domain", "box.example", "--host", "192.0.2.7", "--out", directory]).ok();
    let (authority, certificate) = (format!("{directory}/ca.pem"), format!("{directory}/server.pem"));
    let verifies = |option: &str, name: &str| {
        host("openssl", &["verify", "-CAfile", &authority, option, name, &certificate]).status.success()
    };
    for name in ["box.example", "80-iabc.box.example", "sandbox.box.example", "api.box.example", "localhost"] {
        assert!(verifies("-verify_hostname", name), "{name}");
    }
    assert!(verifies("-verify_ip", "127.0.0.1") && verifies("-verify_ip", "192.0.2.7"));
    for name in ["example", "a.b.box.example", "evil.example"] {
        assert!(!verifies("-verify_hostname", name), "{name}");
    }
}

#[test]
fn the_port_speaks_https_to_clients_that_trust_it() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--tls"]);
    let authority = state.path().join("tls/ca.pem");
    let authority = authority.to_str().unwrap();
    let (url, port) = (server.export("E2B_API_URL"), server.port());
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");

    let health = format!("{url}/health");
    assert!(!curl(&[&health]).1, "a stranger's certificate is refused");
    let (plain, _) = curl(&["-i", &health.replace("https", "http")]);
    assert!(plain.starts_with("HTTP/1.1 400") && plain.contains("only accepts https"), "{plain}");
    for (protocol, version) in [("--http2", "2 200"), ("--http1.1", "1.1 200")] {
        let (answer, _) = curl(&[protocol, "--cacert", authority, "-w", " %{http_version} %{http_code}", &health]);
        assert_eq!(answer, format!("{{\"status\":\"ok\"}} {version}"));
    }

    let untrusting = server.run(&["ls"]);
    assert_eq!(untrusting.code(), 125);
    assert!(untrusting.stderr().contains("--ca-file"), "{}", untrusting.stderr());
    let trusting = |arguments: &[&str]| {
        let finished = server.command(arguments).env("ISOPOD_CA_FILE", authority).output().unwrap();
        assert!(finished.status.success(), "{}", String::from_utf8_lossy(&finished.stderr));
        text(&finished).trim().to_owned()
    };
    let id = trusting(&["create", "--detach"]);
    assert_eq!(trusting(&["exec", &id, "--", "echo", "over https"]), "over https");
    let by_domain = server
        .command(&["exec", &id, "--", "echo", "by name"])
        .env_remove("E2B_API_URL")
        .env_remove("E2B_SANDBOX_URL")
        .env("E2B_DOMAIN", format!("isopod.localhost:{port}"))
        .env("SSL_CERT_FILE", state.path().join("tls/bundle.pem"))
        .output()
        .unwrap();
    assert_eq!(text(&by_domain), "by name\n", "{}", String::from_utf8_lossy(&by_domain.stderr));

    // It answers when it has read the request: a client may close a connection whose other end speaks first.
    let service = "h=; while read -r l; do l=${l%?}; [ -z \"$l\" ] && break; h=\"$h$l;\"; done; \
                   printf 'HTTP/1.1 200 OK\\r\\nconnection: close\\r\\n\\r\\n%s' \"$h\"";
    let listener = format!(
        "import socket,subprocess,os\ns=socket.socket(); s.setsockopt(1,2,1); s.bind(('127.0.0.1',8000)); s.listen()\n\
         if os.fork(): os._exit(0)\nos.close(0); os.close(1); os.close(2)\n\
         while True:\n c,_=s.accept()\n subprocess.run(['bash','-c',{service:?}],stdin=c,stdout=c)\n c.close()"
    );
    trusting(&["exec", &id, "--", "python3", "-c", &listener]);
    let name = format!("8000-{id}.isopod.localhost:{port}");
    let resolve = format!("{name}:127.0.0.1");
    let (seen, _) = curl(&["--cacert", authority, "--resolve", &resolve, &format!("https://{name}/")]);
    assert!(seen.to_lowercase().contains("x-forwarded-proto: https"), "{seen}");
    assert!(seen.contains(&name), "{seen}");

    trusting(&["kill", "--all"]);
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn certificates_of_ones_own_are_used_or_refused_with_a_reason() {
    let state = StateDir::new(BINARY);
    let out = tempfile::tempdir().unwrap();
    let path = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    state.isopod().run(&["tls", "init", "--out", out.path().to_str().unwrap()]).ok();
    let with = |certificate: &str, key: &str| {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
        let refused = state.isopod().run(&listen);
        assert_eq!(refused.code(), 125, "{}", refused.stdout());
        refused.stderr()
    };
    assert!(with(&path("server.pem"), &path("ca.key")).contains("do not match"));
    assert!(with(&path("server.key"), &path("server.key")).contains("no certificate"));
    assert!(with(&path("missing"), &path("server.key")).contains("could not read"));
    assert_eq!(state.isopod().run(&["serve", "--tls-cert", "x"]).code(), 2);

    let (certificate, key) = (path("server.pem"), path("server.key"));
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key]);
    let url = server.export("E2B_API_URL");
    assert!(url.starts_with("https://api.isopod.localhost:"), "{url}");
    let listed = server.command(&["ls", "--json"]).env("ISOPOD_CA_FILE", path("ca.pem")).output().unwrap();
    assert_eq!(text(&listed), "[]\n", "{}", String::from_utf8_lossy(&listed.stderr));
    server.stop();
    state.assert_nothing_left();
}
