//! The name that E2B's CLI gives its image has the ids of the template and of the build:
//! `docker.e2b.app/e2b/custom-envs/TEMPLATE:BUILD`.

use isopod_client::sandbox::RequestedBuild;

const REPOSITORY: &str = "/e2b/custom-envs/";

pub(super) fn requested_build(image: &str) -> Option<RequestedBuild> {
    let (_, ids) = image.split_once(REPOSITORY)?;
    let (template, build) = ids.split_once(':')?;
    let is_id = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_id(template) && is_id(build)).then(|| RequestedBuild { template: template.to_owned(), build: build.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_are_those_of_the_images_name() {
        let found = requested_build("docker.e2b.app/e2b/custom-envs/abc123:0f9c1a2b-0000").unwrap();
        assert_eq!((found.template.as_str(), found.build.as_str()), ("abc123", "0f9c1a2b-0000"));
        assert!(requested_build("docker.box.example:8443/e2b/custom-envs/abc:1").is_some());
        for other in
            ["debian:12", "docker.e2b.app/e2b/custom-envs/abc", "x/e2b/custom-envs/:b", "x/e2b/custom-envs/a/b:c"]
        {
            assert!(requested_build(other).is_none(), "{other}");
        }
    }
}
