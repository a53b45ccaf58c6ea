//! `cubicle secrets`: values that the server keeps, and where they go.

use clap::{Args, Subcommand};
use cubicle_model::credential::Form;
use cubicle_model::{Name, SecretName};

use super::local::Shape;
use super::texts;
use crate::values::Destination;

#[derive(Debug, Subcommand)]
pub(crate) enum Secrets {
    /// Set or replace a secret; its value comes from standard input
    #[command(after_help = texts::SECRETS_SET)]
    Set(SecretSet),
    /// List secrets, without their values
    #[command(visible_alias = "ls")]
    List(Shape),
    /// Remove secrets
    Rm(SecretRm),
}

#[derive(Debug, Args)]
pub(crate) struct SecretSet {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// What it is called; a provider's variable, as ANTHROPIC_API_KEY, is bound to that provider
    #[arg(value_name = "NAME")]
    pub(crate) name: SecretName,

    /// The host it goes to, and the port [default: where it goes already, or 443]
    #[arg(long, value_name = "HOST[:PORT]", requires = "form")]
    pub(crate) to: Option<Destination>,

    /// How a request carries it: bearer, header:NAME, basic:USER or query:NAME
    #[arg(long = "as", value_name = "FORM", requires = "to")]
    pub(crate) form: Option<Form>,

    /// Programs in a sandbox reach the host as http://NAME.egress.internal
    #[arg(long, value_name = "NAME", requires = "to")]
    pub(crate) base: Option<Name>,

    /// Only for sandboxes of this template; may be repeated [default: of all]
    #[arg(long = "template", value_name = "NAME", requires = "to")]
    pub(crate) templates: Vec<Name>,

    /// Let it go out without TLS too
    #[arg(long, requires = "to")]
    pub(crate) even_plain: bool,

    /// Bind it to nothing: it is only masked in output
    #[arg(long, conflicts_with = "to")]
    pub(crate) unbound: bool,

    /// A file of the server, read there whenever it is needed; for administrators
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    pub(crate) from_file: Option<String>,

    /// A variable that the server was started with; for administrators
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) from_env: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SecretRm {
    /// The secrets, as 'cubicle secrets list' shows them
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<SecretName>,
}
