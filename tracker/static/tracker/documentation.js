// Shows the OpenAPI document of this site. In a file of its own: the page's policy allows no script in the page.
"use strict";

SwaggerUIBundle({ url: "/v1/openapi.json", dom_id: "#documentation", deepLinking: true, validatorUrl: null });
