//! What a package is called in code.

use std::collections::BTreeSet;
use std::path::Path;

use pep508_rs::PackageName;

use crate::files;

const LONGEST_LIST: u64 = 8 * 1024 * 1024;
const MOST: usize = 64;

/// Top-level names that can be imported of the package, which is named as indexes compare them. Lists that packages bring
/// are believed only where the module is there.
pub(crate) fn top_level(site: &Path, package: &str) -> Vec<String> {
    let mut names = BTreeSet::new();
    for path in files::entries(site) {
        let directory = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if package_of(directory).as_deref() == Some(package) {
            let listed = files::read(&path.join("top_level.txt"), LONGEST_LIST).ok();
            let found = match listed {
                Some(text) => text.lines().map(|line| line.trim().to_owned()).collect(),
                None => recorded(&files::read(&path.join("RECORD"), LONGEST_LIST).unwrap_or_default()),
            };
            names.extend(found);
        }
    }
    names.retain(|name| is_identifier(name) && is_there(site, name));
    names.into_iter().take(MOST).collect()
}

/// The package of `name-version.dist-info`.
fn package_of(directory: &str) -> Option<String> {
    let (name, _version) = directory.strip_suffix(".dist-info")?.rsplit_once('-')?;
    PackageName::new(name.to_owned()).ok().map(|name| name.to_string())
}

/// The first part of every path that is code.
fn recorded(record: &str) -> BTreeSet<String> {
    let paths = record.lines().filter_map(|line| line.split(',').next()).map(|path| path.trim_matches('"'));
    let code = paths.filter(|path| path.ends_with(".py") || path.ends_with(".so"));
    code.filter_map(|path| match path.split_once('/') {
        Some((first, _)) => Some(first),
        None => path.split('.').next(),
    })
    .map(str::to_owned)
    .collect()
}

fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with("__")
        && name.len() <= 100
}

fn is_there(site: &Path, name: &str) -> bool {
    let extension = |entry: &std::fs::DirEntry| {
        let file = entry.file_name();
        let file = file.to_str().unwrap_or_default();
        file.starts_with(&format!("{name}.")) && file.ends_with(".so")
    };
    site.join(name).is_dir()
        || site.join(format!("{name}.py")).is_file()
        || std::fs::read_dir(site).into_iter().flatten().flatten().any(|entry| extension(&entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        directory
    }

    fn names(files: &[(&str, &str)], package: &str) -> Vec<String> {
        top_level(site(files).path(), package)
    }

    #[test]
    fn names_come_from_the_list_or_else_from_the_record() {
        let record = "yaml/__init__.py,sha256=x,1\n_yaml/__init__.py,,\n../../bin/tool,,\n\
                      fast.cpython-312-x86_64-linux-gnu.so,,\nsingle.py,,\nnumpy.libs/libx.so,,\nPyYAML-6.0.dist-info/RECORD,,\n\
                      __pycache__/single.py,,\n\"odd,name.py\",,\n";
        let files = [
            ("PyYAML-6.0.dist-info/RECORD", record),
            ("yaml/__init__.py", ""),
            ("_yaml/__init__.py", ""),
            ("fast.cpython-312-x86_64-linux-gnu.so", ""),
            ("single.py", ""),
            ("numpy.libs/libx.so", ""),
            ("scikit_learn-1.5.dist-info/top_level.txt", "sklearn\n"),
            ("sklearn/__init__.py", ""),
        ];
        assert_eq!(names(&files, "pyyaml"), ["_yaml", "fast", "single", "yaml"]);
        assert_eq!(names(&files, "scikit-learn"), ["sklearn"]);
        assert_eq!(names(&files, "absent"), Vec::<String>::new());
    }

    #[test]
    fn a_list_that_lies_names_nothing_that_is_not_there() {
        let files = [
            ("evil-1.dist-info/top_level.txt", "os\n../../etc\nevil; import os\n__main__\nevil\n-c\n"),
            ("evil.py", ""),
        ];
        assert_eq!(names(&files, "evil"), ["evil"]);
    }
}
