// Properties of one argument, read from its JSON Schema.

/** Returns a schema with references and single-entry `allOf` lists resolved; `root` has the definitions. */
export function resolved(schema, root) {
  if (schema.$ref) {
    const { $ref, ...rest } = schema;
    const found = $ref.replace(/^#\//, "").split("/").reduce((at, key) => at?.[decodeURIComponent(key)], root);
    return resolved({ ...(found ?? {}), ...rest }, root);
  }
  if (schema.allOf?.length === 1) {
    const { allOf, ...rest } = schema;
    return resolved({ ...allOf[0], ...rest }, root);
  }
  return schema;
}

/** Returns the forms that a value may have, except null. */
export function alternatives(schema, root) {
  const settled = resolved(schema, root);
  const options = settled.anyOf ?? settled.oneOf;
  if (!options) {
    if (!Array.isArray(settled.type)) return [settled];
    return settled.type.filter((type) => type !== "null").map((type) => ({ ...settled, type }));
  }
  return options.flatMap((option) => alternatives(option, root)).filter((option) => option.type !== "null");
}

/** Returns a short name of a form, for selection. */
export function nameOf(schema, root) {
  const settled = resolved(schema, root);
  if (settled.enum || settled.const !== undefined) return "one of a list";
  if (settled.format === "token-id") return "token";
  if (settled.type === "array") {
    const inner = settled.items ? alternatives(settled.items, root) : [];
    if (inner.length === 1 && inner[0].type === "array") return "lists of token ids";
    return inner.length === 1 && inner[0].type === "integer" ? "token ids" : "list";
  }
  return { string: "text", integer: "whole number", boolean: "yes or no", object: "object" }[settled.type] ?? "number";
}

/** Returns the limits of a number in words. */
export function limitsOf(schema) {
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  if (least === undefined && most === undefined) return "";
  const low = schema.exclusiveMinimum !== undefined ? `above ${least}` : `${least}`;
  // Bounds of integer types carry no information for users.
  if (most === undefined || Math.abs(most) >= 2 ** 31) {
    return schema.exclusiveMinimum !== undefined ? low : `${least} or more`;
  }
  const high = schema.exclusiveMaximum !== undefined ? `below ${most}` : `${most}`;
  return least === undefined ? `up to ${high}` : `${low} to ${high}`;
}
