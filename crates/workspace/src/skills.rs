//! Skills: directories with instructions that workers look up, as the Agent Skills format has them.

mod document;
mod keep;

pub use document::{Document, NotASkill, Properties};
pub use keep::{NewSkill, Refused, Shown, Skill, SkillFile, Skills};
