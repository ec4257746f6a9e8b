//! The loopback address of a server's own. It is chosen once and kept in the state directory, so that programs find the
//! server again after a restart.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context;

const FILE: &str = "address";

/// The address of a former start, or a new one.
pub(super) fn own_address(directory: &Path) -> anyhow::Result<Ipv4Addr> {
    let path = directory.join(FILE);
    let kept = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).filter(is_possible);
    if let Some(address) = kept {
        return Ok(address);
    }
    let mut random = [0; 3];
    getrandom::fill(&mut random)?;
    let address = from_bytes(random);
    fs::write(&path, format!("{address}\n")).with_context(|| format!("could not write {}", path.display()))?;
    Ok(address)
}

/// So that the next one is another.
pub(super) fn forget_address(directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(FILE);
    fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))
}

/// From the middle of the loopback network: people and programs choose addresses at its beginning (127.0.0.53,
/// 127.0.1.1).
fn from_bytes([second, third, fourth]: [u8; 3]) -> Ipv4Addr {
    Ipv4Addr::new(127, 64 + second % 128, third, 1 + fourth % 254)
}

fn is_possible(address: &Ipv4Addr) -> bool {
    let [first, second, _, fourth] = address.octets();
    first == 127 && (64..192).contains(&second) && (1..255).contains(&fourth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_and_one_that_was_tampered_with_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let first = own_address(directory.path()).unwrap();
        assert!(is_possible(&first) && own_address(directory.path()).unwrap() == first);
        for bad in ["", "8.8.8.8", "127.0.0.1", "127.64.0.0", "127.100.0.255", "x"] {
            fs::write(directory.path().join(FILE), bad).unwrap();
            assert!(is_possible(&own_address(directory.path()).unwrap()), "{bad}");
        }
    }

    #[test]
    fn all_that_can_be_chosen_is_possible() {
        for byte in 0..=255 {
            assert!(is_possible(&from_bytes([byte; 3])), "{byte}");
        }
    }
}
