use std::collections::BTreeMap;

use cubicle_model::Kind;
use cubicle_workspace::skills::NewSkill;

use crate::{World, world};

fn new<'a>(name: &'a str, description: &'a str, content: &'a str) -> NewSkill<'a> {
    NewSkill { name, description, content, files: BTreeMap::new() }
}

fn refused(world: &World, skill: &NewSkill<'_>) -> Kind {
    let kind = world.tree.create_skill(skill).unwrap_err().kind();
    assert!(world.staging_is_empty());
    kind
}

#[test]
fn a_skill_that_is_made_is_found_and_read() {
    let world = world();
    assert!(world.tree.list_skills().unwrap().skills.is_empty());
    let files = BTreeMap::from([
        ("scripts/fill.py".to_owned(), b"#!/usr/bin/env python3\n".to_vec()),
        ("references/forms.md".to_owned(), b"# Forms".to_vec()),
    ]);
    let made = world
        .tree
        .create_skill(&NewSkill { files, ..new("pdf-forms", "Fills: \"forms\" #1", "# Filling\n\nUse it.") })
        .unwrap();
    assert_eq!(made.content, "# Filling\n\nUse it.\n");
    let listed = world.tree.list_skills().unwrap();
    assert_eq!(listed.skills.len(), 1);
    assert_eq!(listed.skills[0].description, "Fills: \"forms\" #1");
    assert_eq!(listed.skills[0].path, "skills/pdf-forms/SKILL.md");
    let read = world.tree.get_skill("pdf-forms").unwrap();
    assert_eq!(read, made);
    let files: Vec<_> = read.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["skills/pdf-forms/references/forms.md", "skills/pdf-forms/scripts/fill.py"]);
    let text = world.tree.read("skills/pdf-forms/SKILL.md", 0, None).unwrap();
    assert!(String::from_utf8(text.bytes).unwrap().starts_with("---\nname: \"pdf-forms\"\n"));
}

#[test]
fn a_skill_against_the_rules_is_not_made() {
    let world = world();
    world.tree.list_skills().unwrap();
    let long = "x".repeat(1025);
    for name in ["", "A", "-a", "a-", "a--b", "a b", "../a", "a/b", &"a".repeat(65)] {
        assert_eq!(refused(&world, &new(name, "d", "c")), Kind::Invalid, "{name}");
    }
    for description in ["", " ", &long] {
        assert_eq!(refused(&world, &new("a", description, "c")), Kind::Invalid);
    }
    for content in [
        "---\nname: b\ndescription: d\n---\nx",
        "---\nname: a\ndescription: other\n---\nx",
        "---\nname: a\ndescription: d\nversion: 1\n---\nx",
    ] {
        assert_eq!(refused(&world, &new("a", "d", content)), Kind::Invalid, "{content}");
    }
    for path in ["SKILL.md", "../x", "/etc/x", ""] {
        let files = BTreeMap::from([(path.to_owned(), Vec::new())]);
        assert_eq!(refused(&world, &NewSkill { files, ..new("a", "d", "c") }), Kind::Invalid, "{path}");
    }
    let files = BTreeMap::from([("x".to_owned(), vec![0; 9 << 20])]);
    assert_eq!(refused(&world, &NewSkill { files, ..new("a", "d", "c") }), Kind::Invalid);
    assert!(world.tree.list_skills().unwrap().skills.is_empty());
}

#[test]
fn a_skill_is_not_made_twice() {
    let world = world();
    world.tree.create_skill(&new("a", "first", "c")).unwrap();
    assert_eq!(refused(&world, &new("a", "second", "c")), Kind::Conflict);
    assert_eq!(world.tree.get_skill("a").unwrap().properties.description, "first");
}

#[test]
fn skills_that_others_wrote_are_read_leniently() {
    let world = world();
    let put = |path: &str, text: &str| world.tree.write(path, text.as_bytes()).unwrap();
    put("skills/fine/SKILL.md", "---\nname: fine\ndescription: d\n---\nbody");
    put("skills/odd/SKILL.md", "---\nname: Odd\ndescription: d\nhomepage: x\n---\nbody");
    put("skills/mute/SKILL.md", "---\nname: mute\n---\nbody");
    put("skills/none/README.md", "nothing");
    put("skills/loose.md", "nothing");
    std::os::unix::fs::symlink("/etc", world.tree.shared_path().join("skills/link")).unwrap();
    let listed = world.tree.list_skills().unwrap();
    let names: Vec<_> = listed.skills.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!(names, ["fine", "Odd"]);
    assert!(listed.skills[0].warnings.is_empty() && listed.skills[1].warnings.len() == 3);
    assert_eq!(listed.refused.len(), 1);
    assert_eq!(listed.refused[0].path, "skills/mute/SKILL.md");
    assert_eq!(world.tree.get_skill("odd").unwrap().content, "body");
    assert_eq!(world.tree.get_skill("none").unwrap_err().kind(), Kind::NotFound);
    for name in ["..", "", "fine/../odd", "/etc"] {
        assert_eq!(world.tree.get_skill(name).unwrap_err().kind(), Kind::Invalid, "{name}");
    }
}
