//! Areas as plain directories, for file systems that cannot enforce limits.

use isopod_wire::Bytes;
use rustix::fs::Mode;

use super::error::{Context, DiskError, NoLimit};
use super::name::AreaName;
use super::places::{Areas, Places};
use super::usage::Usage;

/// Refuses every limit, and says why.
pub(super) struct Plain {
    pub(super) reason: NoLimit,
}

impl Areas for Plain {
    fn create(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        self.refuse(name, limit)?;
        rustix::fs::mkdirat(places.areas(), name.as_str(), Mode::RWXU).doing_area("make", name.as_str())
    }

    fn set_limit(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        places.open_area(name)?;
        self.refuse(name, limit)
    }

    fn usage(&self, places: &Places, name: &AreaName) -> Result<Usage, DiskError> {
        places.open_area(name)?;
        Ok(Usage { used: None, limit: None })
    }

    fn remove(&self, places: &Places, name: &AreaName) -> Result<(), DiskError> {
        places.discard(name)
    }

    fn no_limit(&self) -> Option<&NoLimit> {
        Some(&self.reason)
    }
}

impl Plain {
    fn refuse(&self, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        match limit {
            Some(_) => Err(DiskError::CannotLimit { area: name.to_string(), reason: self.reason.clone() }),
            None => Ok(()),
        }
    }
}
