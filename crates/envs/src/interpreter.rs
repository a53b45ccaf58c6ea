//! Which Python runs in environments.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_model::{Fault, Kind, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::program::{Run, is_program};
use crate::{EnvSettings, ServiceUser};

const WANTED: (u32, u32) = (3, 12);
const OLDEST: (u32, u32) = (3, 8);
const NEWEST_LOOKED_FOR: u32 = 30;
/// A busy host takes a while for the first start of an interpreter.
const PATIENCE: Duration = Duration::from_secs(20);
/// The base of a virtual environment is what matters: the environment itself may hold anything.
const QUESTION: &str = "import json, os, sys, sysconfig
real = os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable)
libc = ''
try:
    libc = os.confstr('CS_GNU_LIBC_VERSION') or ''
except (AttributeError, OSError, ValueError):
    pass
print(json.dumps({
    'version': '.'.join(map(str, sys.version_info[:3])),
    'implementation': sys.implementation.name,
    'abi': sysconfig.get_config_var('SOABI') or '',
    'platform': sysconfig.get_platform(),
    'libc': libc,
    'prefix': os.path.realpath(sys.base_prefix),
    'executable': real,
}))";

/// An interpreter of this host that sandboxes can have too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// As in `3.12.1`.
    pub version: String,
    /// As in `cpython-312-x86_64-linux-gnu`.
    pub abi: String,
    /// As in `linux-x86_64`, and the C library.
    pub platform: String,
    /// Where it is on the host.
    pub program: PathBuf,
    /// Where it is in a sandbox.
    pub inside: String,
    /// What has to be mounted for it; nothing for one of the host's `/usr`, which sandboxes see in any case.
    pub prefix: Option<Prefix>,
}

/// A directory of the host, to be mounted read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    pub source: PathBuf,
    /// Below `/mnt/python`.
    pub target: String,
}

impl Interpreter {
    /// As in `3.12`.
    pub fn short_version(&self) -> &str {
        self.version.rsplit_once('.').map_or(&self.version, |(short, _)| short)
    }

    fn number(&self) -> (u32, u32, u32) {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or_default());
        let mut next = || parts.next().unwrap_or_default();
        (next(), next(), next())
    }
}

#[derive(Debug, Deserialize)]
struct Answer {
    version: String,
    implementation: String,
    abi: String,
    platform: String,
    libc: String,
    prefix: PathBuf,
    executable: PathBuf,
}

/// The best interpreter of the host: one that is new enough, from `/usr` before others and from elsewhere before uv's own;
/// else the newest. One that the user who runs uv cannot run does not count: sandboxes could not either.
pub(crate) async fn find(settings: &EnvSettings, user: Option<ServiceUser>) -> Result<Interpreter, Fault> {
    if let Some(named) = &settings.python {
        return ask(named, user).await.ok_or_else(|| {
            Fault::new(
                Kind::Invalid,
                format!("{} is not a Python that sandboxes can be given", named.display()),
            )
            .hint("it must be CPython 3.8 or newer, and everybody must be able to run it")
        });
    }
    let mut found: Vec<(Origin, Interpreter)> = Vec::new();
    for (origin, path) in candidates(settings) {
        let Some(interpreter) = ask(&path, user).await else { continue };
        if found.iter().all(|(_, known)| known.program != interpreter.program) {
            found.push((origin, interpreter));
        }
        // Nothing that comes later is preferred to this one.
        if let Some((_, best)) = best(&found)
            && best.prefix.is_none()
            && (best.number().0, best.number().1) >= WANTED
        {
            break;
        }
    }
    best(&found).map(|(_, interpreter)| interpreter.clone()).ok_or_else(|| {
        Fault::new(Kind::Denied, "there is no Python on this host that environments can be made with").hint(
            "install one, as in 'apt-get install python3', or name one that everybody can run in sandbox.python",
        )
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Host,
    Managed,
}

fn best(found: &[(Origin, Interpreter)]) -> Option<&(Origin, Interpreter)> {
    found.iter().max_by_key(|(origin, interpreter)| {
        let (major, minor, patch) = interpreter.number();
        let is_wanted = (major, minor) >= WANTED;
        let is_system = interpreter.prefix.is_none();
        let preference = if is_wanted { (is_system, *origin == Origin::Host) } else { (false, false) };
        (is_wanted, preference, major, minor, patch, is_system)
    })
}

/// The usual places in the usual order.
fn candidates(settings: &EnvSettings) -> Vec<(Origin, PathBuf)> {
    let mut places: Vec<PathBuf> = vec!["/usr/bin".into(), "/usr/local/bin".into()];
    places.extend(settings.path.iter().filter(|path| path.is_absolute()).cloned());
    let names = std::iter::once("python3".to_owned())
        .chain((OLDEST.1..NEWEST_LOOKED_FOR).rev().map(|minor| format!("python3.{minor}")));
    let names: Vec<String> = names.collect();
    let mut all = Vec::new();
    for place in places {
        all.extend(names.iter().map(|name| (Origin::Host, place.join(name))));
    }
    for directory in &settings.managed_pythons {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut installed: Vec<PathBuf> = entries.map(|entry| entry.path().join("bin/python3")).collect();
        installed.sort();
        all.extend(installed.into_iter().map(|path| (Origin::Managed, path)));
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|(_, path)| is_program(path) && seen.insert(std::fs::canonicalize(path).unwrap_or_default()));
    all
}

/// Runs it isolated and without `site`, so that nothing but the interpreter itself answers.
async fn ask(path: &Path, user: Option<ServiceUser>) -> Option<Interpreter> {
    let run = Run {
        program: path.to_owned(),
        arguments: ["-I", "-S", "-c", QUESTION].map(str::to_owned).to_vec(),
        variables: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: "/".into(),
        user,
        timeout: PATIENCE,
    };
    let ran = run.run().await.ok().filter(|ran| ran.code == Some(0))?;
    accepted(serde_json::from_str(ran.stdout.trim()).ok()?)
}

fn accepted(answer: Answer) -> Option<Interpreter> {
    if answer.implementation != "cpython" || !answer.executable.is_absolute() {
        return None;
    }
    let seen_by_all = answer.executable.starts_with("/usr") && answer.prefix.starts_with("/usr");
    let (inside, prefix) = if seen_by_all {
        (answer.executable.to_str()?.to_owned(), None)
    } else {
        let below = answer.executable.strip_prefix(&answer.prefix).ok()?.to_str()?.to_owned();
        let identity = format!("{} {}", answer.prefix.display(), answer.version);
        let target = format!("/mnt/python/{}", &hexadecimal(&Sha256::digest(identity))[..16]);
        (format!("{target}/{below}"), Some(Prefix { source: answer.prefix, target }))
    };
    let interpreter = Interpreter {
        version: answer.version,
        abi: answer.abi,
        platform: format!("{} {}", answer.platform, answer.libc).trim_end().to_owned(),
        program: answer.executable,
        inside,
        prefix,
    };
    let (major, minor, _) = interpreter.number();
    ((major, minor) >= OLDEST).then_some(interpreter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: &str, prefix: &str) -> Answer {
        Answer {
            version: version.into(),
            implementation: "cpython".into(),
            abi: "cpython-x".into(),
            platform: "linux-x86_64".into(),
            libc: "glibc 2.36".into(),
            prefix: prefix.into(),
            executable: Path::new(prefix).join("bin/python3"),
        }
    }

    fn chosen(found: &[(Origin, &str, &str)]) -> String {
        let all: Vec<(Origin, Interpreter)> = found
            .iter()
            .map(|(origin, version, prefix)| (*origin, accepted(answer(version, prefix)).unwrap()))
            .collect();
        let (_, interpreter) = best(&all).unwrap();
        format!("{} {}", interpreter.version, interpreter.program.display())
    }

    #[test]
    fn one_that_is_new_enough_is_taken_from_usr_first_and_from_uv_last() {
        use Origin::{Host, Managed};
        let (usr, opt, uv) = ("/usr", "/opt/python", "/srv/uv/cpython");
        for (found, expected) in [
            (vec![(Host, "3.12.0", usr), (Host, "3.13.1", opt)], "3.12.0 /usr/bin/python3"),
            (
                vec![(Host, "3.11.2", usr), (Host, "3.12.1", opt), (Managed, "3.14.0", uv)],
                "3.12.1 /opt/python/bin/python3",
            ),
            (vec![(Host, "3.11.2", usr), (Managed, "3.12.0", uv)], "3.12.0 /srv/uv/cpython/bin/python3"),
            (
                vec![(Host, "3.9.2", usr), (Host, "3.11.2", opt), (Managed, "3.10.0", uv)],
                "3.11.2 /opt/python/bin/python3",
            ),
            (vec![(Host, "3.11.2", opt), (Host, "3.11.2", usr)], "3.11.2 /usr/bin/python3"),
        ] {
            assert_eq!(chosen(&found), expected);
        }
    }

    #[test]
    fn one_outside_of_usr_is_mounted_where_it_does_not_hide_anything() {
        let own = accepted(answer("3.12.1", "/opt/python")).unwrap();
        let prefix = own.prefix.clone().unwrap();
        assert_eq!(prefix.source, Path::new("/opt/python"));
        assert!(
            prefix.target.starts_with("/mnt/python/")
                && own.inside == format!("{}/bin/python3", prefix.target)
        );
        assert_eq!(own.short_version(), "3.12");
        assert_eq!(accepted(answer("3.12.1", "/usr/local")).unwrap().inside, "/usr/local/bin/python3");
    }

    #[test]
    fn what_is_no_cpython_of_our_days_is_left_out() {
        assert!(accepted(answer("2.7.18", "/usr")).is_none());
        assert!(accepted(answer("3.7.1", "/usr")).is_none());
        assert!(accepted(Answer { implementation: "pypy".into(), ..answer("3.12.0", "/usr") }).is_none());
        assert!(
            accepted(Answer { executable: "/elsewhere/python".into(), ..answer("3.12.0", "/opt/x") })
                .is_none()
        );
    }
}
