//! `isopod tls`: an authority of this machine's own, and what clients need to know of it.

mod authority;
mod bundles;
mod files;
mod names;
mod person;
mod trust;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use isopod_node::StateRoot;

use crate::args::{TlsArgs, TlsCommand, TlsInitArgs};
use crate::failure::Hint;
use crate::privilege::require_root;
use files::{Made, TlsFiles};
use names::Names;
use person::Person;
use trust::{Browsers, Trusted};

pub(super) use bundles::system_bundle;
pub(super) use names::checked_domain;

pub(super) fn run(state_dir: &Path, args: &TlsArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        TlsCommand::Init(init) => init_files(state_dir, init),
        TlsCommand::Ca { bundle } => print_authority(state_dir, *bundle),
        TlsCommand::Trust { remove: false } => trust(state_dir),
        TlsCommand::Trust { remove: true } => distrust(state_dir),
    }
}

/// Where the server finds its certificate and clients find the authority's.
#[derive(Debug)]
pub(super) struct ServerTls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) authority: PathBuf,
    pub(super) bundle: PathBuf,
}

/// Sees to it that there is a certificate for the domain in the state directory, and that it is valid for a while yet.
pub(super) fn ensure_for_server(state: &StateRoot, domain: &str, listen: IpAddr) -> anyhow::Result<ServerTls> {
    let files = TlsFiles::open(state.path().join("tls"))?;
    // "All addresses" is none that a certificate could name.
    let address = (!listen.is_unspecified()).then(|| listen.to_string());
    if files.ensure(&Names::new(domain, address.as_slice())?)? == Made::Authority {
        tracing::info!(authority = %files.authority().display(), "made a certificate authority for https");
    }
    Ok(ServerTls {
        certificate: files.certificate(),
        key: files.key(),
        authority: files.authority(),
        bundle: files.bundle(),
    })
}

/// Sees to it that there is a certificate for these domains and all names right below them, of an authority that can
/// certify nothing else. It is not the machine's own: only programs that `isopod env` runs trust it, and they are told of it
/// each time.
pub(super) fn ensure_for_domains(directory: &Path, domains: &[String]) -> anyhow::Result<ServerTls> {
    let files = TlsFiles::open(directory.to_owned())?;
    files.ensure_only(&Names::only(domains)?)?;
    Ok(ServerTls {
        certificate: files.certificate(),
        key: files.key(),
        authority: files.authority(),
        bundle: files.bundle(),
    })
}

fn init_files(state_dir: &Path, args: &TlsInitArgs) -> anyhow::Result<ExitCode> {
    let names = Names::new(&args.domain, &args.host)?;
    let directory = match &args.out {
        Some(directory) => directory.clone(),
        None => {
            require_root()?;
            StateRoot::open(state_dir)?.path().join("tls")
        }
    };
    let files = TlsFiles::open(directory)?;
    let made = files.ensure(&names)?;
    say!("{}\n", made.words());
    say!("  authority    {}", files.authority().display());
    say!("  certificate  {}", files.certificate().display());
    say!("  private key  {}\n", files.key().display());
    match args.out {
        None => say!("Start the server with: isopod serve --tls"),
        Some(_) => say!(
            "Start the server with: isopod serve --tls-cert {} --tls-key {}",
            files.certificate().display(),
            files.key().display()
        ),
    }
    print_client_lines(&files.authority(), &files.bundle());
    Ok(ExitCode::SUCCESS)
}

/// The one line that each SDK needs.
pub(super) fn print_client_lines(authority: &Path, bundle: &Path) {
    say!("So that the SDKs trust it:\n");
    say!("  export SSL_CERT_FILE={}        # Python", bundle.display());
    say!("  export NODE_EXTRA_CA_CERTS={}  # JavaScript\n", authority.display());
    say!("For users who may not read these files: sudo isopod tls ca > isopod-ca.pem\n");
}

fn print_authority(state_dir: &Path, bundle: bool) -> anyhow::Result<ExitCode> {
    require_root()?;
    let directory = state_dir.join("tls");
    let path = directory.join(if bundle { files::BUNDLE } else { files::AUTHORITY });
    if !path.exists() {
        return Err(no_authority());
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    crate::say::print(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

fn trust(state_dir: &Path) -> anyhow::Result<ExitCode> {
    require_root()?;
    let authority = known_authority(state_dir)?.ok_or_else(no_authority)?;
    authority.add_to_system()?;
    say!("Programs that use this machine's list of authorities trust the server.");
    match authority.add_to_browsers(&Person::who_asks()?)? {
        Browsers::Changed(count) => say!("So do Chromium, Chrome and Firefox ({}); restart them.", lists(count)),
        Browsers::NoCertutil => say!("Browsers have lists of their own: install libnss3-tools and run this again."),
    }
    Ok(ExitCode::SUCCESS)
}

fn distrust(state_dir: &Path) -> anyhow::Result<ExitCode> {
    require_root()?;
    let authority = known_authority(state_dir)?.ok_or_else(no_authority)?;
    let was_there = authority.remove_from_system()?;
    let browsers = authority.remove_from_browsers(&Person::who_asks()?);
    match (was_there, browsers) {
        (false, Browsers::Changed(0) | Browsers::NoCertutil) => say!("This machine does not trust the authority."),
        (_, Browsers::Changed(count)) => {
            say!("This machine no longer trusts the authority, nor do {} of browsers.", lists(count));
        }
        (true, Browsers::NoCertutil) => say!(
            "This machine no longer trusts the authority. To remove it from browsers, install libnss3-tools and run this again."
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends what [`trust`] began, for an uninstall. What fails is told, and does not stop it.
pub(super) fn forget_trust(state_dir: &Path) {
    let forget = || -> anyhow::Result<()> {
        let Some(authority) = known_authority(state_dir)? else { return Ok(()) };
        if authority.remove_from_system()? {
            authority.remove_from_browsers(&Person::who_asks()?);
        }
        Ok(())
    };
    if let Err(error) = forget() {
        tracing::warn!("could not remove the certificate authority from those that this machine trusts: {error:#}");
    }
}

/// The authority of the state directory, if it has one.
fn known_authority(state_dir: &Path) -> anyhow::Result<Option<Trusted>> {
    let directory = state_dir.join("tls");
    if !directory.is_dir() {
        return Ok(None);
    }
    let files = TlsFiles::open(directory)?;
    Ok(files.authority_name().map(|name| Trusted::new(name, files.authority())))
}

fn no_authority() -> anyhow::Error {
    Hint::new("there is no authority yet", "isopod tls init makes one")
}

fn lists(count: usize) -> String {
    if count == 1 { "1 list".to_owned() } else { format!("{count} lists") }
}
