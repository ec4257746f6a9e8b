//! The layers that sandboxes use, according to their records.
//!
//! A lock only covers processes that are running now. Sandboxes outlive their server, and stopped ones have no process
//! at all. So whoever removes a layer takes its lock first and then checks here. No new record can appear in between,
//! because creating a sandbox locks its layers before it writes the record.

use std::io;
use std::path::{Path, PathBuf};

use crate::generation_name::GenerationName;
use crate::home::owned_records;
use crate::state::template_users;

/// The state directories whose sandboxes may use a layer.
#[derive(Debug)]
pub(crate) struct LayerUsers {
    states: Vec<PathBuf>,
}

impl LayerUsers {
    /// Users of the generations in `layers`, which belongs to one state directory.
    pub(crate) fn of_generations(layers: &Path) -> Self {
        Self { states: layers.parent().map(Path::to_owned).into_iter().collect() }
    }

    /// Users of the layers in `templates`, which is in a state directory or is a link to a directory that several
    /// share.
    pub(crate) fn of_templates(templates: &Path) -> io::Result<Self> {
        let mut states: Vec<PathBuf> = templates.parent().map(Path::to_owned).into_iter().collect();
        states.extend(template_users(templates)?);
        Ok(Self { states })
    }

    /// Whether a sandbox uses this generation of the base.
    pub(crate) fn have_base(&self, generation: &str) -> io::Result<bool> {
        Ok(self.generations()?.iter().any(|used| GenerationName::parse(used).base == generation))
    }

    /// The generations that the records of all sandboxes name.
    pub(crate) fn generations(&self) -> io::Result<Vec<String>> {
        let mut generations = Vec::new();
        for state in &self.states {
            generations.extend(owned_records(&state.join("homes"))?.map(|record| record.generation));
        }
        Ok(generations)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use isopod_wire::build::BuiltTemplate;
    use isopod_wire::node::SandboxSpec;
    use isopod_wire::{Bytes, Limits, NetworkPolicy, SandboxId};

    use super::*;
    use crate::record::Record;
    use crate::state::{add_template_user, remove_template_user};
    use crate::template::Manifest;

    fn write_record(state: &Path, execution: &str, generation: &str, is_owned: bool) -> PathBuf {
        let directory = state.join("homes/serve/boxes").join(execution);
        fs::create_dir_all(&directory).unwrap();
        let mut record = Record::new(execution.parse().unwrap(), "base", generation, Limits::default());
        record.spec = is_owned.then(|| SandboxSpec {
            sandbox: SandboxId::from_random([7; 20]),
            template: "base".to_owned(),
            limits: Limits::default(),
            network: NetworkPolicy::default(),
            env: BTreeMap::new(),
            access_token: None,
            labels: BTreeMap::new(),
            mounts: Vec::new(),
            features: Default::default(),
            snapshot: None,
        });
        record.save(&directory).unwrap();
        directory
    }

    #[test]
    fn what_owned_records_name_is_in_use_and_what_pooled_ones_name_is_not() {
        let state = tempfile::tempdir().unwrap();
        write_record(state.path(), "x1", "base-1", true);
        write_record(state.path(), "x2", "base-2", false);
        write_record(state.path(), "x3", "base-3+l-9", true);
        let users = LayerUsers::of_generations(&state.path().join("layers"));
        for (generation, is_used) in [("base-1", true), ("base-2", false), ("base-3", true), ("base-4", false)] {
            assert_eq!(users.have_base(generation).unwrap(), is_used, "{generation}");
        }
        assert!(users.have_layer(Path::new("/nowhere"), "l-9").unwrap());
        assert!(!users.have_layer(Path::new("/nowhere"), "l-8").unwrap());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_told() {
        let state = tempfile::tempdir().unwrap();
        let directory = write_record(state.path(), "x1", "base-1", true);
        fs::write(directory.join("record.json"), "{").unwrap();
        let error = LayerUsers::of_generations(&state.path().join("layers")).have_base("base-9").unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }

    fn manifest(layers: &[&str]) -> Manifest {
        let template = BuiltTemplate {
            id: String::new(),
            layers: layers.iter().map(ToString::to_string).collect(),
            env: BTreeMap::new(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            start_cmd: None,
            ready_cmd: None,
            limits: Limits::default(),
            size: Bytes(0),
            made_at: std::time::SystemTime::UNIX_EPOCH,
        };
        Manifest::new(template, true, false, String::new(), Vec::new(), Default::default())
    }

    #[test]
    fn a_sandbox_of_a_built_template_uses_it_and_its_layers() {
        let state = tempfile::tempdir().unwrap();
        let templates = state.path().join("templates");
        fs::create_dir(&templates).unwrap();
        let id = manifest(&["l-1", "l-2"]).save(&templates).unwrap().template.id;
        let users = LayerUsers::of_templates(&templates).unwrap();
        let uses = |users: &LayerUsers| {
            let layers = ["l-1", "l-2", "l-3"].map(|layer| users.have_layer(&templates, layer).unwrap());
            (users.have_template(&id).unwrap(), layers)
        };
        write_record(state.path(), "x1", &format!("base-1+{id}"), false);
        assert_eq!(uses(&users), (false, [false; 3]));
        write_record(state.path(), "x2", &format!("base-1+{id}"), true);
        assert_eq!(uses(&users), (true, [true, true, false]));
        assert!(!users.have_template("tpl-0123456789abcdef0123456789abcdef").unwrap());
    }

    #[test]
    fn a_manifest_that_cannot_be_read_or_is_gone_is_told_and_does_not_mean_unused() {
        let state = tempfile::tempdir().unwrap();
        let templates = state.path().join("templates");
        fs::create_dir(&templates).unwrap();
        let whole = manifest(&["l-1"]).save(&templates).unwrap();
        let id = &whole.template.id;
        let path = templates.join(format!("{id}.json"));
        let later = serde_json::to_string(&whole).unwrap().replace("\"format\":1", "\"format\":999");
        write_record(state.path(), "x1", &format!("base-1+{id}"), true);
        let users = LayerUsers::of_templates(&templates).unwrap();
        for text in ["{", &later] {
            fs::write(&path, text).unwrap();
            let error = users.have_layer(&templates, "l-1").unwrap_err();
            assert!(error.to_string().contains("damaged or of a later version"), "{error}");
            assert!(users.have_template(id).unwrap(), "the record alone says so");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(users.have_layer(&templates, "l-1").is_err(), "an error of the disk");
        fs::remove_dir(&path).unwrap();
        let error = users.have_layer(&templates, "l-1").unwrap_err();
        assert!(error.to_string().contains("not on this node"), "{error}");
    }

    #[test]
    fn a_shared_templates_directory_knows_all_its_users_and_forgets_those_that_are_gone() {
        let (shared, one, other) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let templates = one.path().join("templates");
        for state in [&one, &other, &other] {
            // The second time, the link already exists.
            let _ = std::os::unix::fs::symlink(shared.path(), state.path().join("templates"));
            add_template_user(state.path(), &state.path().join("templates")).unwrap();
        }
        write_record(other.path(), "x1", "base-1+l-9", true);
        let is_used = || LayerUsers::of_templates(&templates).unwrap().have_layer(&templates, "l-9").unwrap();
        assert!(is_used());
        drop(other);
        assert!(!is_used());
        remove_template_user(one.path(), &templates);
        assert_eq!(fs::read_dir(shared.path().join(".users")).unwrap().count(), 0);
    }
}
