//! Templates.

use cubicle_model::Timestamp;
use cubicle_model::template::Recipe;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// What a template is to say. Everything has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = schema::Recipe)]
pub struct PutTemplate(pub Recipe);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Everybody's, and not the tenant's own.
    pub shared: bool,
    #[schema(value_type = schema::Recipe)]
    pub recipe: Recipe,
    /// The ETag, for `If-Match`.
    pub version: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}
