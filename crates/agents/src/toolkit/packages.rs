//! `install_package`: passes one requirement to pip, as a separate argument.

use std::time::Duration;

use isopod_guest_client::guest::StartProcess;
use serde::Deserialize;
use serde_json::json;

use super::code::run;
use super::errors::ToolError;
use super::sandbox::Held;
use super::tool::{Fields, Toolkit, fields};

/// How long an installation may take.
pub(super) const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PackageArguments {
    package: String,
}

impl PackageArguments {
    /// Checks that it is a name and not an option of pip.
    pub(super) fn check(&self) -> Result<(), ToolError> {
        if self.package.is_empty() || self.package.starts_with('-') || self.package.chars().any(char::is_control) {
            return Err(ToolError::Arguments("package must be one requirement, such as pandas==2.0.0".to_owned()));
        }
        Ok(())
    }
}

impl Toolkit {
    pub(super) async fn install_package(&self, held: &Held, arguments: &PackageArguments) -> Result<Fields, ToolError> {
        let pip = StartProcess::new("python3").args(["-m", "pip", "install", "--", &arguments.package]);
        let mut result = run(held, pip.timeout(INSTALL_TIMEOUT)).await?;
        result["package"] = json!(arguments.package);
        Ok(fields(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_pip_are_no_packages() {
        let check = |package: &str| PackageArguments { package: package.to_owned() }.check();
        for bad in ["", "-r/etc/passwd", "--index-url=http://x", "a\nb"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert!(check("pandas==2.0.0").is_ok() && check("a; rm -rf /").is_ok());
    }
}
