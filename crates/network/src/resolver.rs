//! The DNS servers for sandboxes: those of the host that a sandbox can reach.

use std::net::Ipv4Addr;
use std::path::Path;

/// The host's settings, and the file in which systemd-resolved lists the servers behind its loopback address.
const SOURCES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
/// The C library reads at most this many.
const MAX_SERVERS: usize = 3;

/// DNS servers and the settings that go with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolvers {
    servers: Vec<Ipv4Addr>,
    /// `search`, `domain` and `options` lines, unchanged.
    settings: Vec<String>,
}

impl Resolvers {
    /// The host's DNS servers. Empty if a sandbox can reach none of them: there is no file, or all servers use IPv6 or
    /// the loopback.
    pub fn of_host() -> Self {
        Self::first_usable(SOURCES.iter().map(Path::new))
    }

    /// These servers, without settings.
    pub fn new(servers: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        Self { servers: servers.into_iter().filter(is_reachable).take(MAX_SERVERS).collect(), settings: Vec::new() }
    }

    /// Parses the text of a `resolv.conf` and skips what is useless inside a sandbox.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next()) {
                (Some("nameserver"), Some(server)) => found.servers.extend(server.parse().ok().filter(is_reachable)),
                (Some("search" | "domain" | "options"), Some(_)) => found.settings.push(line.trim().to_owned()),
                _ => {}
            }
        }
        found.servers.truncate(MAX_SERVERS);
        found
    }

    pub fn servers(&self) -> &[Ipv4Addr] {
        &self.servers
    }

    /// The content of a sandbox's `/etc/resolv.conf`.
    pub fn resolv_conf_text(&self) -> String {
        let servers = self.servers.iter().map(|server| format!("nameserver {server}\n"));
        let settings = self.settings.iter().map(|line| format!("{line}\n"));
        servers.chain(settings).collect()
    }

    fn first_usable<'p>(sources: impl Iterator<Item = &'p Path>) -> Self {
        sources
            .filter_map(|path| std::fs::read_to_string(path).ok())
            .map(|text| Self::parse(&text))
            .find(|found| !found.servers.is_empty())
            .unwrap_or_default()
    }
}

fn is_reachable(server: &Ipv4Addr) -> bool {
    !server.is_loopback() && !server.is_unspecified() && !server.is_multicast() && !server.is_broadcast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_cannot_use_is_left_out() {
        let text = "# c\nnameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 0x8.8.8.8\n\
                    nameserver\nnameserver 192.0.2.1 # it\nsearch corp.example\n\toptions edns0\noptions\n";
        let found = Resolvers::parse(text);
        assert_eq!(found.servers(), [Ipv4Addr::new(192, 0, 2, 1)]);
        assert_eq!(found.resolv_conf_text(), "nameserver 192.0.2.1\nsearch corp.example\noptions edns0\n");
    }

    #[test]
    fn no_more_servers_than_the_c_library_reads() {
        let text: String = (1..9).map(|last| format!("nameserver 192.0.2.{last}\n")).collect();
        assert_eq!(Resolvers::parse(&text).servers().len(), 3);
    }

    #[test]
    fn the_file_behind_a_loopback_resolver_is_used() {
        let folder = std::env::temp_dir().join(format!("resolvers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (stub, real) = (folder.join("stub"), folder.join("real"));
        std::fs::write(&stub, "nameserver 127.0.0.53\nsearch stub\n").unwrap();
        std::fs::write(&real, "nameserver 192.0.2.53\n").unwrap();
        let paths = [folder.join("none"), stub, real];
        let found = Resolvers::first_usable(paths.iter().map(std::path::PathBuf::as_path));
        assert_eq!(found, Resolvers::new([Ipv4Addr::new(192, 0, 2, 53)]));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
